"""The attachment: which optimizers scale which convolutions, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from spatialgrad.sgs.apply import Apply
from spatialgrad.sgs.filters import Filters
from spatialgrad.sgs.layers import names_by_optimizer
from spatialgrad.sgs.place import Place, choose_place
from spatialgrad.sgs.reports import Reports
from spatialgrad.sgs.step_hook import StepHook, check_not_scaled_twice
from spatialgrad.torch_utils.modules import Convolution

AfterSteps = Callable[[Sequence[Sequence[str]]], Sequence[Callable[[], None]]]
"""Gets the names of each optimizer's convolutions; returns what to call after each optimizer's steps."""


class Attachment:
    """Step hooks on optimizers, each for the convolutions that it trains.

    Args:
        apply: What the user asked for.
        convolutions: The convolutions by qualified name; several where modules share one weight.
        filters: Their scalings.
        reports: Gets what has no effect.
    """

    def __init__(
        self, apply: Apply, convolutions: Mapping[str, Sequence[Convolution]], filters: Filters, reports: Reports
    ) -> None:
        self.requested, self._convolutions = apply, convolutions
        self._filters, self._reports = filters, reports
        self._hooks: list[StepHook] = []
        self._places: list[Place] = []

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that scale; empty while detached."""
        return [hook.optimizer for hook in self._hooks]

    @property
    def apply(self) -> Apply:
        """Where the scalings are applied; ``"auto"`` only if that differs between optimizers, or while detached."""
        found = {hook.apply for hook in self._hooks}
        return found.pop() if len(found) == 1 else self.requested

    @property
    def place(self) -> str:
        """Where the scalings are applied, in words."""
        return f"{self.apply!r}{' (assumed)' if any(place.assumed for place in self._places) else ''}"

    def __str__(self) -> str:
        return " and ".join(type(optimizer).__name__ for optimizer in self.optimizers) or "nothing (detached)"

    def attach(self, optimizers: list[Optimizer], start: AfterSteps | None) -> None:
        """Scale whenever these optimizers step, and no others.

        Args:
            optimizers: Each convolution's weight is in one of them.
            start: What else begins with the first step.
        """
        names = names_by_optimizer(self._convolutions, optimizers)
        if sum(map(len, names.values())) > len(self._convolutions):
            raise ValueError("A convolution's weight is in several of the optimizers: each would scale it.")
        check_not_scaled_twice(optimizers, self._hooks, [convs[0].weight for convs in self._convolutions.values()])
        chosen = {
            optimizer: choose_place(self.requested, optimizer, self._convolutions[own[0]][0].weight)
            for optimizer, own in names.items()
            if own
        }
        self.detach()
        self._places = list(chosen.values())
        then = [None] * len(chosen) if start is None else start([names[optimizer] for optimizer in chosen])
        for (optimizer, place), after_step in zip(chosen.items(), then, strict=True):
            pairs = partial(self._weights_and_filters, names[optimizer])
            self._hooks.append(StepHook(optimizer, place.apply, pairs, after_step))
        for reason in dict.fromkeys(place.no_effect for place in self._places if place.no_effect):
            self._reports.once(reason, stacklevel=5)

    def detach(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._places = [], []

    def _weights_and_filters(self, names: list[str]) -> list[tuple[Tensor, Tensor]]:
        pairs = [self._filters.pair(name) for name in names]
        if None in pairs:
            lost = [name for name, pair in zip(names, pairs, strict=True) if pair is None]
            self._reports.layers(lost, "were parametrized or pruned after the scaling was built and are not scaled")
        return [pair for pair in pairs if pair is not None]
