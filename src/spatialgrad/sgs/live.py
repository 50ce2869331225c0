"""Live updates: measure the training's own forward passes, without a loader and without further passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from spatialgrad.sgs.measurement import Measurement
from spatialgrad.sgs.passes import TrainingPassHook
from spatialgrad.torch_utils.modules import nothing_compiled
from spatialgrad.torch_utils.numbers import is_count


@dataclass(frozen=True, kw_only=True)
class Live:
    """When scalings are updated from the training's own forward passes, in steps of the optimizer.

    The defaults are the schedule of the paper's CIFAR-100 experiments (its appendix): a warm-up of 1 epoch, then an
    update every 5 epochs with 2 batches, where an epoch has ⌈50,000 / 128⌉ = 391 steps.
    """

    warmup: int = 391
    """Steps before the first update begins."""
    every: int = 5 * 391
    """Steps between two updates: they begin after step `warmup`, and then after every step that is a multiple."""
    batches: int = 2
    """Steps whose forward passes give the ranges, and as many again that are counted. With gradient accumulation, or
    with a closure that is evaluated several times, all passes of a step take part."""

    def __post_init__(self) -> None:
        if not (is_count(self.warmup) and is_count(self.every) and is_count(self.batches) and self.batches >= 1):
            raise ValueError(
                f"Invalid schedule: warmup={self.warmup!r}, every={self.every!r} and batches={self.batches!r} must be "
                "integers, and batches at least 1."
            )
        if self.every < 2 * self.batches:
            raise ValueError(
                f"Invalid schedule: an update takes {2 * self.batches} steps (twice batches={self.batches}), so "
                f"every={self.every} must be at least that."
            )

    def due(self, step: int) -> bool:
        """Return whether an update begins after this number of steps."""
        return step == self.warmup or (step > self.warmup and step % self.every == 0)

    def next_update(self, step: int) -> int:
        """Return the number of steps after which the next update begins, given the number so far."""
        return self.warmup if step < self.warmup else (step // self.every + 1) * self.every


class LiveUpdate:
    """Counts the steps of one optimizer, and measures the convolutions that it trains when an update is due.

    Args:
        schedule: When, and over how many steps.
        start: Returns a new measurement of the convolutions.
        finish: Gets the finished measurement.
        check: ``check(step=...)`` raises an error unless all processes agree; called once in every update.
        watch: Begins whatever else is to be seen in these passes; returns what ends it.
    """

    def __init__(
        self,
        schedule: Live,
        start: Callable[[], Measurement],
        finish: Callable[[Measurement], None],
        check: Callable[..., None],
        watch: Callable[[], Callable[[], None]],
    ) -> None:
        self._schedule, self._start, self._finish, self._check = schedule, start, finish, check
        self._watch = watch
        self.step = 0
        self._measurement: Measurement | None = None
        self._steps_in_pass = 0
        self._hooks: list[TrainingPassHook] = []
        self._observing = ExitStack()
        self._begin_if_due()

    @property
    def measuring(self) -> bool:
        """Whether an update is under way."""
        return self._measurement is not None

    def after_step(self) -> None:
        """Count a step; the end of a pass or of an update may fall on it."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "live=True cannot count steps that are replayed from a CUDA graph. Capture the forward and backward "
                "passes alone, or call sgs.update(loader) between epochs."
            )
        self.step += 1
        measurement = self._measurement
        if measurement is None:
            self._begin_if_due()
            return
        for hook in self._hooks:
            hook.new_step()
        if measurement.number == self._steps_in_pass == 0:
            self._check(step=self.step)
        measurement.combine()
        self._steps_in_pass += 1
        if self._steps_in_pass < self._schedule.batches:
            return
        self._steps_in_pass = 0
        measurement.end_pass(lenient=True)
        if measurement.finished:
            self._measurement = None
            self.stop()
            self._finish(measurement)
            self._begin_if_due()

    def stop(self) -> None:
        """Remove all hooks; an update that is under way is kept, but sees nothing more."""
        self._observing.close()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule is, and what an update under way has gathered."""
        under_way = None if self._measurement is None else self._measurement.state_dict()
        return {"step": self.step, "steps_in_pass": self._steps_in_pass, "measurement": under_way}

    def prepare(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state, and return what continues from it; nothing changes before.

        Raises:
            ValueError: If it is invalid.
        """
        try:
            step, steps_in_pass, under_way = state["step"], state["steps_in_pass"], state["measurement"]
            if not (is_count(step) and is_count(steps_in_pass)):
                raise ValueError(f"step={step!r} and steps_in_pass={steps_in_pass!r} must be integers of at least 0")
            measurement = None if under_way is None else self._start()
            if measurement is not None:
                measurement.load_state_dict(under_way)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"Invalid state of live updates in the state_dict: {error}") from error
        return partial(self._continue, int(step), int(steps_in_pass), measurement)

    def _continue(self, step: int, steps_in_pass: int, measurement: Measurement | None) -> None:
        self.stop()
        self.step, self._steps_in_pass, self._measurement = step, steps_in_pass, measurement
        if measurement is not None:
            self._observe(measurement)

    def _begin_if_due(self) -> None:
        if self._schedule.due(self.step):
            self._measurement = self._start()
            self._observe(self._measurement)

    def _observe(self, measurement: Measurement) -> None:
        # Compiled code does not see new hooks.
        self._observing.enter_context(nothing_compiled())
        self._observing.callback(self._watch())
        for conv, observe in measurement.observers().items():
            hook = TrainingPassHook(conv, observe)
            self._hooks.append(hook)
            # Registered last: the user's own hooks that change the input run first.
            self._observing.callback(conv.register_forward_pre_hook(hook, with_kwargs=True).remove)


class LiveUpdates:
    """The live updates of all optimizers that a scaling is attached to; each has its own schedule.

    Args:
        schedule: When, and over how many steps.
        start: ``start(names)`` returns a new measurement of these convolutions.
        finish: ``finish(names, measurement)`` gets the finished one.
        check: ``check(step=...)`` raises an error unless all processes agree; called once in every update.
        watch: Begins whatever else is to be seen in the passes of an update; returns what ends it.
    """

    def __init__(
        self,
        schedule: Live,
        start: Callable[[Sequence[str]], Measurement],
        finish: Callable[[Sequence[str], Measurement], None],
        check: Callable[..., None],
        watch: Callable[[], Callable[[], None]],
    ) -> None:
        self.schedule = schedule
        self._start, self._finish, self._check, self._watch = start, finish, check, watch
        self._updates: list[LiveUpdate] = []
        self._kept: list[dict[str, Any]] = []

    def attach(self, names: Sequence[Sequence[str]]) -> list[Callable[[], None]]:
        """Start, or continue where `detach` has stopped.

        Args:
            names: The convolutions of each optimizer.

        Returns:
            What to call after the steps of each optimizer.
        """

        def update_of(own: Sequence[str]) -> LiveUpdate:
            return LiveUpdate(
                self.schedule,
                partial(self._start, own),
                partial(self._finish, own),
                partial(self._check, live=self.schedule),
                self._watch,
            )

        self.detach()
        self._updates = [update_of(own) for own in names]
        if len(self._kept) == len(self._updates):
            self.load_state_dict(self._kept)
        return [update.after_step for update in self._updates]

    def detach(self) -> None:
        """Stop observing; the state is kept."""
        self._kept = self.state_dict()
        for update in self._updates:
            update.stop()
        self._updates = []

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of every optimizer's updates."""
        return [update.state_dict() for update in self._updates] if self._updates else self._kept

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from states; an invalid one raises `ValueError` and changes nothing."""
        if not isinstance(states, Sequence):
            raise ValueError(f"Invalid state of live updates in the state_dict: {states!r} is not a list")
        if not self._updates:
            self._kept = [dict(state) for state in states]
            return
        if len(states) != len(self._updates):
            raise ValueError(
                f"The state_dict has live updates for {len(states)} optimizers, but {len(self._updates)} are attached."
            )
        ready = [update.prepare(state) for update, state in zip(self._updates, states, strict=True)]
        for go_on in ready:
            go_on()

    def __getstate__(self) -> dict[str, Any]:
        # Hooks belong to the modules that are here; a copy gets its own when it is attached.
        return {**self.__dict__, "_updates": [], "_kept": self.state_dict()}

    def __repr__(self) -> str:
        steps = [update.step for update in self._updates] or [state["step"] for state in self._kept]
        parts = ["updating now" if update.measuring else "" for update in self._updates]
        status = [
            f"step {step}, {now or f'next update after step {self.schedule.next_update(step)}'}"
            for step, now in zip(steps, parts or [""] * len(steps), strict=True)
        ]
        return f"live ({'; '.join(status)})"
