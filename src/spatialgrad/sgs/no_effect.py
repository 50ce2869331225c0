"""Scaling that has no effect is noticed: the optimizer never steps, or nothing is ever measured."""

from __future__ import annotations

import atexit
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

# More backward passes without a step than any gradient accumulation has.
PATIENCE = 1000
# How many times in a row the weights may change without our step, by something other than an optimizer.
CHANGES = 3


class NoEffectWarning(UserWarning):
    """Something was set up that has no effect on training."""


@dataclass(eq=False)
class Progress:
    """How far a training is, and whether its scalings will ever be measured."""

    steps: int = 0
    """Steps of all optimizers."""
    updates: int = 0
    """Updates of the scalings."""
    scheduled: bool = False
    """Whether updates come by themselves, or somebody asks when they are due."""
    given: bool = False
    """Whether scalings were given, so that they have an effect without an update."""
    advice: str = ""
    """When the first update comes, and how to have it earlier."""

    def watch(self) -> None:
        """Warn at the end of the process, unless `warn_if_unused` or `stop_watching` comes first."""
        _RUNNING.add(self)

    def stop_watching(self) -> None:
        """Say nothing at the end of the process."""
        _RUNNING.discard(self)

    def count_step(self) -> None:
        """Count a step, and warn once if many of them passed without any sign of an update."""
        self.steps += 1
        if self.steps == PATIENCE and not (self.updates or self.scheduled):
            self.warn_if_unused()

    def warn_if_unused(self) -> None:
        """Warn if training has ended, and scaled nothing."""
        self.stop_watching()
        if self.steps and not self.updates and not self.given:
            what = f"No scaling was measured in {self.steps} steps, so nothing was scaled: {self.advice}."
            warnings.warn(what, NoEffectWarning, stacklevel=3)


_RUNNING: weakref.WeakSet[Progress] = weakref.WeakSet()


@atexit.register
def _warn_at_exit() -> None:
    for progress in list(_RUNNING):
        progress.warn_if_unused()


class BackwardWatch:
    """Counts the backward passes of the first weight; warns if it changes, or its gradient piles up, without our step.

    It holds no tensor: the garbage collector does not see a cycle that runs through a tensor's hooks.

    Attributes:
        count: Number of backward passes.
        stepped: Whether our step has run since the last one.
    """

    def __init__(self, optimizer: Optimizer, weights: list[Tensor]) -> None:
        self.count, self.stepped = 0, False
        self._optimizer, self._version = type(optimizer).__name__, 0
        self._passes_without_step = self._changes_without_step = 0
        self._handles: list[RemovableHandle] = []
        trainable: list[Any] = [weight for weight in weights if weight.requires_grad]
        for weight in trainable[:1]:
            self._version = weight._version
            self._handles.append(weight.register_post_accumulate_grad_hook(self._after_backward))

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()

    def _after_backward(self, weight: Tensor) -> None:
        self.count += 1
        changed = weight._version != self._version
        self._version = weight._version
        if self.stepped:
            self.stepped = False
            self._passes_without_step = self._changes_without_step = 0
            return
        self._passes_without_step += 1
        self._changes_without_step += changed
        if self._passes_without_step == PATIENCE or (changed and self._changes_without_step == CHANGES):
            warnings.warn(
                f"{self._optimizer}.step() was not called in {self._passes_without_step} backward passes, so gradients "
                "are not scaled. Call sgs.attach() with the optimizer that you step.",
                NoEffectWarning,
                stacklevel=2,
            )
