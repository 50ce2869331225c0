"""TensorBoard events of a run: metrics, and the scalings as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spatialgrad.train.errors import ConfigError
from spatialgrad.train.run import TENSORBOARD

SIDE = 16
"""Pixels of one entry of G in a picture."""
LARGEST = 3.0
"""What is as red as possible. Fixed, so that pictures of different updates can be compared."""
_LOW, _MIDDLE, _HIGH = (np.array(colour, dtype=float) for colour in ((33, 102, 172), (247, 247, 247), (178, 24, 43)))


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
        """Write G of every layer as a picture, and its centre as a scalar."""
        for name, values in scalings.items():
            G = np.asarray(values, dtype=float)
            self._writer.add_image(f"scaling/{name}", picture(G), step, dataformats="HWC")
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


def picture(G: np.ndarray) -> np.ndarray:
    """G in colours, one square per entry: 1 is white, smaller is blue, larger is red.

    Args:
        G: Of a kernel with any number of dimensions; the planes of a volume are stacked from top to bottom.

    Returns:
        Height × width × 3, uint8.
    """
    flat = np.atleast_2d(G).reshape(-1, G.shape[-1])[..., None]
    below, above = np.clip(flat, 0, 1), np.clip((flat - 1) / (LARGEST - 1), 0, 1)
    colours = np.where(flat <= 1, _LOW + (_MIDDLE - _LOW) * below, _MIDDLE + (_HIGH - _MIDDLE) * above)
    small: np.ndarray = np.rint(colours).astype(np.uint8)
    return small.repeat(SIDE, axis=0).repeat(SIDE, axis=1)
