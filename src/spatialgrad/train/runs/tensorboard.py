"""TensorBoard events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spatialgrad.train.errors import ConfigError
from spatialgrad.train.runs.folder import TENSORBOARD


class Board:
    """Writes metrics as TensorBoard scalars.

    Args:
        folder: Of the run.
        step: From which the run resumes; later events of an interrupted session are hidden.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("--tensorboard needs tensorboard: pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder / TENSORBOARD), purge_step=step)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write one value for each name."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace("_", "/", 1), value, step)

    def close(self) -> None:
        """Write pending events."""
        self._writer.close()
