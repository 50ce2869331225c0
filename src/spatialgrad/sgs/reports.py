"""Reports: what has no effect is said once, and not again at every update."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

from spatialgrad.sgs.outcome import Outcome
from spatialgrad.sgs.step_hook import NoEffectWarning


class Reports:
    """Warns about each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def layers(self, names: list[str], what: str, *, stacklevel: int = 3) -> None:
        """Warn that something is the matter with layers, unless that has been said about them."""
        new = [name for name in names if f"{name} {what}" not in self._said]
        if new:
            self._said.update(f"{name} {what}" for name in new)
            warnings.warn(f"Convolutions {', '.join(new)} {what}.", NoEffectWarning, stacklevel=stacklevel)

    def once(self, what: str, *, stacklevel: int = 3) -> None:
        """Warn, unless that has been said."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"{what}.", NoEffectWarning, stacklevel=stacklevel)

    def measured(self, outcome: Outcome, names: Sequence[str], *, stacklevel: int = 3) -> None:
        """Warn about layers for which an update has no scaling, or no better one than ones.

        Args:
            outcome: The result of the update.
            names: The layers that should be in it.
            stacklevel: As in `warnings.warn`.
        """
        report = partial(self.layers, stacklevel=stacklevel + 1)
        report([name for name in names if name not in outcome.scalings], "were not called in the forward pass")
        report(outcome.idle, "have inputs without information and keep a uniform scaling")
        report(outcome.independent, "have inputs without spatial dependence (S = 0) and keep a uniform scaling")
