"""The result of a run: `result.json`."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from spatialgrad.train.runs.folder import RESULT, write_json


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run and its cost."""

    model: str
    dataset: str
    method: str
    seed: int
    epochs: int
    steps: int
    metric: str
    """Name of the headline metric, such as accuracy; the method's own for some methods."""
    value: float
    """The headline metric of the deployed network on the test images after the last epoch."""
    test: dict[str, float]
    """All metrics of the deployed network."""
    best: float
    """The best headline metric of all evaluated epochs; `value` if it is the method's own."""
    trained: dict[str, float]
    """The task's metrics of the network before merging; those of `test` if nothing was merged."""
    merge_difference: float | None
    """Largest relative change of a layer's output by merging; None if nothing was merged."""
    seconds: float
    """Time of all phases, over all sessions."""
    training_seconds: float
    evaluation_seconds: float
    scaling_seconds: float
    """Time of the method's updates: measuring scalings, or growing branches."""
    checkpoint_seconds: float
    parameters: int
    """Of the deployed network."""
    macs: int
    """Multiply-accumulates of one image through the deployed network."""
    training_parameters: int
    """Of the network at the end of training, with its branches."""
    training_macs: int
    peak_memory_bytes: int
    """On a GPU, the memory allocated on it; on a CPU, the peak size of the process, data included."""

    def write(self, folder: Path) -> None:
        """Write `result.json`, which marks the run as finished."""
        write_json(folder / RESULT, {self.metric: self.value, **asdict(self)})


def read_result(folder: Path) -> Result | None:
    """The result of a run; None if it has not finished."""
    path = Path(folder) / RESULT
    if not path.exists():
        return None
    values: dict[str, Any] = json.loads(path.read_text())
    return Result(**{name: values[name] for name in Result.__dataclass_fields__})


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
