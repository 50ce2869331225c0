"""The scalings of a run, read only if a figure shows them: they are by far its largest file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from spatialgrad.report.reading import Complain, last_entry, matrix, read_entries, whole

Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Scalings:
    """G of every layer at one update, and the S that it was made from."""

    epoch: int
    layers: Mapping[str, Matrix]
    dependence: Mapping[str, Matrix] = field(default_factory=dict)
    """S by layer, where it was measured."""


class ScalingsLog:
    """The updates in a file of scalings; none of them is kept.

    Args:
        path: The file, which need not exist; None if it must not be read.
        archived: The updates of an archived run, which has no file.
    """

    def __init__(self, path: Path | None, archived: Sequence[dict[str, Any]] = ()) -> None:
        self.path, self._archived = path, archived
        self._damage: list[str] = []
        self._unreadable: set[str] = set()

    def __bool__(self) -> bool:
        """Whether there is any update."""
        return self._any

    @property
    def measured(self) -> bool:
        """Whether S was measured; the first and the last update tell."""
        return any(update is not None and bool(update.dependence) for update in (self.first, self.last))

    def read(self) -> list[Scalings]:
        """All updates."""
        self._damage.clear()
        updates = [self._update(entry) for entry in self._entries(self._damage.append)]
        return [update for update in updates if update is not None]

    @property
    def first(self) -> Scalings | None:
        """The first update; later ones are not read unless it is damaged."""
        updates = (self._update(entry) for entry in self._entries(lambda text: None))
        return next(updates, None) or next(iter(self.read()), None)

    @property
    def last(self) -> Scalings | None:
        """The last update; earlier ones are not parsed unless it is damaged."""
        newest = last_entry(self.path) if self.path is not None else None
        found = self._update(newest) if newest is not None else None
        return found or next(reversed(self.read()), None)

    @property
    def problems(self) -> tuple[str, ...]:
        """Damage, as far as the file was read."""
        if not self._unreadable or self.path is None:
            return tuple(self._damage)
        return (*self._damage, f"{self.path.name} has no matrix for {', '.join(sorted(self._unreadable)[:3])}")

    @cached_property
    def _any(self) -> bool:
        return self.first is not None

    def _entries(self, complain: Complain) -> Iterator[dict[str, Any]]:
        return iter(self._archived) if self.path is None else read_entries(self.path, complain)

    def _update(self, entry: Mapping[str, Any]) -> Scalings | None:
        found: dict[str, Matrix] = {}
        measured: dict[str, Matrix] = {}
        for kind, readable in (("scalings", found), ("dependence", measured)):
            values = entry.get(kind)
            for name, each in values.items() if isinstance(values, dict) else ():
                if (parsed := matrix(each)) is None:
                    self._unreadable.add(name)
                else:
                    readable[name] = parsed
        return Scalings(epoch=whole(entry, "epoch") or 0, layers=found, dependence=measured) if found else None
