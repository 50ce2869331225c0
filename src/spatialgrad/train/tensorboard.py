"""TensorBoard events of a run: metrics, and the scalings as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spatialgrad.plot import plot_scalings
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.run import TENSORBOARD


class Board:
    """Writes metrics as TensorBoard scalars, and scalings as pictures.

    Args:
        folder: Of the run.
        step: From which the run resumes; later events of an interrupted session are hidden.
    """

    def __init__(self, folder: Path, step: int) -> None:
        # What was written at the step of the checkpoint is valid; some of it is written again, with the same values.
        self._writer = writer_class()(str(folder / TENSORBOARD), purge_step=step + 1 if step else 0)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write one value for each name."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace("_", "/", 1), value, step)

    def add_scalings(self, scalings: Mapping[str, Any], step: int) -> None:
        """Write G of all layers as a picture, and the centre of each as a scalar."""
        self._writer.add_figure("scalings", plot_scalings(scalings), step, close=False)
        for name, values in scalings.items():
            G = np.asarray(values, dtype=float)
            self._writer.add_scalar(f"scaling centre/{name}", float(G[tuple(side // 2 for side in G.shape)]), step)

    def close(self) -> None:
        """Write pending events."""
        self._writer.close()


def check_tensorboard() -> None:
    """Raise a `ConfigError` if TensorBoard is not installed."""
    writer_class()


def writer_class() -> Any:
    """PyTorch's writer of events.

    Raises:
        ConfigError: If TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs tensorboard: pip install tensorboard") from error
    return SummaryWriter
