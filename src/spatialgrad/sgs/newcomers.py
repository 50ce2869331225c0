"""Newcomers: convolutions that can be scaled only since a scaling was created, and are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import nn
from torch.optim import Optimizer

from spatialgrad.sgs.layers import ELSEWHERE, FROZEN, reason_to_skip
from spatialgrad.sgs.reports import Reports
from spatialgrad.torch_utils.modules import Convolution, Predicate, named_convolutions
from spatialgrad.torch_utils.optimizers import parameter_ids


class Newcomers:
    """Reports convolutions that were unfrozen, added to the optimizer, or added to the model.

    Args:
        model: The model.
        scaled: The convolutions that are scaled, by qualified name.
        skipped: The reason for every convolution that was skipped, by qualified name.
        predicates: What the user chooses convolutions by. If there is any, modules that were not there at first do not
            count: they were never chosen.
        reports: Gets them.
    """

    def __init__(
        self,
        model: nn.Module,
        scaled: Mapping[str, Sequence[Convolution]],
        skipped: Mapping[str, str],
        predicates: Sequence[Predicate | None],
        reports: Reports,
    ) -> None:
        self._model, self._scaled, self._skipped = model, scaled, skipped
        self._new_modules = not any(predicates)
        found = named_convolutions(model)
        self._frozen = [found[name] for name, reason in skipped.items() if reason == FROZEN]
        self._reports = reports
        self._seen: object = None

    def report(self, optimizers: Sequence[Optimizer], *, stacklevel: int = 4) -> None:
        """Warn about those among the parameters that these optimizers hold now, once about each."""
        trained = set[int]().union(*map(parameter_ids, optimizers))
        known = {id(conv) for convs in self._scaled.values() for conv in convs}
        unknown = ELSEWHERE if self._new_modules else "not chosen"
        found = [
            name
            for name, conv in named_convolutions(self._model).items()
            if id(conv) not in known
            and id(conv._parameters.get("weight")) in trained
            and self._skipped.get(name, unknown) in (FROZEN, ELSEWHERE)
            and reason_to_skip(name, conv) is None
        ]
        what = "can be trained only since the scaling was created, and are not scaled; create it again"
        self._reports.layers(found, what, stacklevel=stacklevel)

    def watch(self, optimizers: Sequence[Optimizer], names: Sequence[Sequence[str]]) -> list[Callable[[], None]]:
        """Return what to call after each optimizer's steps, if there are no updates that report newcomers."""
        return [partial(self._report_if_changed, optimizers) for _ in names]

    def _report_if_changed(self, optimizers: Sequence[Optimizer]) -> None:
        held = [len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups]
        now = (held, [conv.weight.requires_grad for conv in self._frozen])
        if now != self._seen:
            self._seen = now
            self.report(optimizers)
