"""The result of a run: `result.json`."""

from __future__ import annotations

import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.runs.folder import RESULT, read_json, write_json


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
    inaction: str | None = None
    """Why the method never acted, so that the run is one of the baseline; None if it did."""

    def write(self, folder: Path) -> None:
        """Write `result.json`, which marks the run as finished."""
        write_json(folder / RESULT, {self.metric: self.value, **asdict(self)})


def _kinds(hint: Any) -> tuple[type, ...]:
    """The classes of a field's JSON values."""
    kinds = [get_origin(each) or each for each in (get_args(hint) if get_origin(hint) is UnionType else [hint])]
    return (*kinds, int) if float in kinds else tuple(kinds)


KINDS = {name: _kinds(hint) for name, hint in get_type_hints(Result).items()}


def read_result(folder: Path) -> Result | None:
    """The result of a run; None if it has not finished.

    Raises:
        DamagedFileError: If `result.json` is damaged.
    """
    path = Path(folder) / RESULT
    if not path.exists():
        return None
    way_out = "Remove it: the run then writes it again from its last checkpoint"
    try:
        values = read_json(path)
    except DamagedFileError as error:
        raise DamagedFileError(f"{error}. {way_out}.") from error
    damaged = [name for name, kind in KINDS.items() if not isinstance(values.get(name), kind)]
    if damaged:
        raise DamagedFileError(f"{path} is damaged (invalid {', '.join(damaged)}). {way_out}.")
    return Result(**{name: values[name] for name in KINDS if name in values})


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
