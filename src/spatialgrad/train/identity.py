"""What makes two runs the same: the fields that change a result, the data, and the number of processes.

The version of the package and the machine are recorded beside it (`environment.json`), not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from spatialgrad.train.config import TrainConfig, changed_fields, digest_of, flatten, to_dict
from spatialgrad.train.flags import flag

EPOCHS, DATA, PROCESSES = "budget.epochs", "data", "processes"
STARTS = ("model.backbone", "repopt.scales", "scaling.fixed")
"""Fields that name the run to start from; of their paths, only the last two parts count: folders may be moved."""


@dataclass(frozen=True)
class Identity:
    """What determines the result of a run."""

    config: TrainConfig
    data: str | None = None
    """Fingerprint of the data set; None if it has not been read, and then it is not compared."""
    processes: int | None = None
    """Number of processes; None if it is not known yet, and then it is not compared. It belongs to the identity because
    each process normalizes its own share of a batch."""

    @property
    def digest(self) -> str:
        """A digest of everything that changes the result; 16 hexadecimal digits.

        Fields at their defaults are left out, so that a field that a later version adds does not change it.
        """
        fields = {name: _comparable(name, value) for name, value in changed_fields(self.config).items()}
        return digest_of([fields, self.data, self.processes])


def explain_difference(there: Identity, now: Identity) -> dict[str, tuple[Any, Any]]:
    """What makes two runs different ones, with both values: dotted fields, `data` and `processes`; empty if nothing."""
    fields = sorted(changed_fields(there.config).keys() | changed_fields(now.config).keys())
    first, second = flatten(to_dict(there.config)), flatten(to_dict(now.config))
    pairs = {name: (first[name], second[name]) for name in fields}
    found = {name: pair for name, pair in pairs.items() if _comparable(name, pair[0]) != _comparable(name, pair[1])}
    for name in (DATA, PROCESSES):
        pair = getattr(there, name), getattr(now, name)
        if None not in pair and pair[0] != pair[1]:
            found[name] = pair
    return found


def describe_difference(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """What `explain_difference` returns, as indented lines."""
    told = {DATA: "the images or labels of the data set", PROCESSES: "number of processes"}
    lines = [f"  {told.get(name) or flag(name)}: {a!r} there, {b!r} requested" for name, (a, b) in differing.items()]
    return "\n".join(lines)


def is_longer(differing: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether the second of two runs differs from the first only by more epochs."""
    return differing.keys() == {EPOCHS} and differing[EPOCHS][0] < differing[EPOCHS][1]


def _comparable(name: str, value: Any) -> Any:
    return "/".join(PurePath(value).parts[-2:]) if name in STARTS and isinstance(value, str) else value
