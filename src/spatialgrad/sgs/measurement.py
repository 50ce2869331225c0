"""A measurement: the estimators of all convolutions, in step on all processes, and within a bound on their memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spatialgrad.sgs.dependence.estimator import Estimator, EstimatorFactory
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.torch_utils.distributed import all_reduce_, is_distributed
from spatialgrad.torch_utils.modules import Convolution


@dataclass(eq=False)
class Part:
    """Convolutions that look at the same neighbours of inputs with the same number of channels, and their estimator."""

    name: str
    convolutions: list[Convolution]
    estimator: Estimator | None
    """None as soon as the result is known."""
    device: torch.device
    called: bool = False
    """Whether an input was seen in the present pass, by any process as far as is known."""
    turn: int = 1
    """The number of the pass in which it is counted; 0 once it is done or left out."""
    step: int = 1
    """Only every so many channels are counted."""
    dependence: Tensor | None = None
    """The result."""

    def running(self) -> Estimator:
        """Return the estimator of a part that is not done."""
        if self.estimator is None:
            raise RuntimeError(f"The measurement of {self.name!r} is finished.")
        return self.estimator

    def observe(self, maps: Tensor) -> None:
        """Pass an input on to the estimator; errors name the layer."""
        conv = self.convolutions[0]
        num_dims = len(conv.kernel_size)
        if not isinstance(maps, Tensor) or not maps.is_floating_point():
            return  # the convolution itself gives the best error
        wrong_shape = maps.dim() not in (num_dims + 1, num_dims + 2) or maps.shape[-num_dims - 1] != conv.in_channels
        if wrong_shape or maps.numel() == 0:
            return  # as above
        self.called = True
        maps = maps.detach() if maps.dim() == num_dims + 2 else maps.detach().unsqueeze(0)
        try:
            self.running().observe(maps[:, :: self.step])
        except Exception as error:
            raise ValueError(f"Cannot measure the input of {self.name!r}: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return the state in tensors and plain values."""
        estimator = None if self.estimator is None else self.estimator.state_dict()
        own = {"called": self.called, "turn": self.turn, "step": self.step, "dependence": self.dependence}
        return {**own, "estimator": estimator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state."""
        self.called, self.turn, self.step = state["called"], state["turn"], state["step"]
        if state["dependence"] is not None:
            self.dependence = state["dependence"].to(self.device, copy=True)
        if state["estimator"] is None:
            self.estimator = None
        else:
            self.running().load_state_dict(state["estimator"], self.device)


class Measurement:
    """Measures the dependence of several convolutions in passes: ranges in the first one, counts in the others.

    Args:
        convolutions: The modules by name. Several modules under one name are pooled: as further samples where they
            look at the same neighbours, as further channels where they do not.
        make_estimator: Builds an estimator.
        group: The processes that take part; by default all of them.
        memory: Bytes that the counts may take. If those of all layers need more, layers take turns, each in a pass of
            its own; if those of one layer need more, only every second, third, … of its channels is counted.

    Attributes:
        number: The number of passes that have ended.
        problems: Why layers were left out, by name; only after ``end_pass(lenient=True)``.
    """

    def __init__(
        self,
        convolutions: Mapping[str, Sequence[Convolution]],
        make_estimator: EstimatorFactory,
        *,
        group: dist.ProcessGroup | None = None,
        memory: int | None = None,
    ) -> None:
        self._names = list(convolutions)
        self._parts = _parts_of_one_geometry(convolutions, make_estimator)
        self._group, self._memory = group, memory
        self._combined = False
        self.number = 0
        self.problems: dict[str, str] = {}

    @property
    def finished(self) -> bool:
        """Whether every pass that is needed has ended."""
        return self.number > 0 and not any(part.turn for part in self._parts)

    def observers(self) -> dict[Convolution, Callable[[Tensor], None]]:
        """Return what to call with the inputs of each convolution."""

        def observer(part: Part) -> Callable[[Tensor], None]:
            def observe(maps: Tensor) -> None:
                if self._takes_part(part):
                    self._separate()
                    part.observe(maps)

            return observe

        return {conv: observer(part) for part in self._parts for conv in part.convolutions}

    def combine(self) -> None:
        """Combine what all processes have gathered; all of them must call this together, once or more in each pass."""
        if not is_distributed(self._group):
            return
        self._separate()
        active = [part for part in self._parts if self._takes_part(part)]
        all_reduce_([item for part in active for item in part.running().partials()], self._group)
        called = torch.tensor([part.called for part in active], dtype=torch.int32, device=self._parts[0].device)
        all_reduce_([(called, "max")], self._group)
        for part, flag in zip(active, called.tolist(), strict=True):
            part.called = bool(flag)
        self._combined = True

    def end_pass(self, *, lenient: bool = False) -> None:
        """Close the pass; it must have been combined.

        Args:
            lenient: Leave layers out whose maps cannot be used, with an entry in `problems`, instead of raising
                `ValueError`.
        """
        if self.number == 0:
            self._end_first_pass(lenient)
        else:
            for part in self._parts:
                if self._takes_part(part):
                    self._take_result(part)
        for part in self._parts:
            part.called = False
        self._combined = False
        self.number += 1

    def dependence(self) -> dict[str, Tensor]:
        """Return S by name, for every convolution that was called in all passes; the same on every process."""
        found: dict[str, Tensor] = {}
        for name in self._names:
            parts = [part.dependence for part in self._parts if part.name == name and part.dependence is not None]
            if parts:
                found[name] = torch.cat(parts)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state in tensors and plain values; directly after `combine`, that of all processes together."""
        parts = [part.state_dict() for part in self._parts]
        return {"number": self.number, "combined": self._combined, "problems": dict(self.problems), "parts": parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which may be that of another process."""
        if len(state["parts"]) != len(self._parts):
            raise ValueError(
                f"The state_dict has {len(state['parts'])} measured layers, but this model has {len(self._parts)}."
            )
        self.number, self._combined = state["number"], state["combined"]
        self.problems = dict(state["problems"])
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)

    def _takes_part(self, part: Part) -> bool:
        return self.number == 0 or part.turn == self.number

    def _separate(self) -> None:
        """Before more is gathered, drop sums that the first process holds as well."""
        if not self._combined:
            return
        self._combined = False
        if not is_distributed(self._group) or dist.get_rank(self._group) == 0:
            return
        for part in self._parts:
            if self._takes_part(part):
                for tensor, reduction in part.running().partials():
                    if reduction == "sum":
                        tensor.zero_()

    def _end_first_pass(self, lenient: bool) -> None:
        facts = _fetched([part.running().facts() for part in self._parts])
        for part, known in zip(self._parts, facts, strict=True):
            try:
                part.running().end_pass(known)
            except ValueError as error:
                message = f"Cannot measure the input of {part.name!r}: {error}."
                if not lenient:
                    raise ValueError(message) from error
                self.problems[part.name] = message
            if not part.called or part.name in self.problems:
                part.turn = 0
            elif part.running().num_passes == 1:
                self._take_result(part)
        self._take_turns([part for part in self._parts if part.turn])

    def _take_turns(self, parts: list[Part]) -> None:
        """Spread parts over as few passes as possible, in order, so that the counts of each fit into the memory."""
        if self._memory is None:
            return
        turn, used = 1, 0
        for part in parts:
            channels = part.convolutions[0].in_channels
            per_channel = part.running().bytes_per_channel()
            part.step = max(1, math.ceil(channels / max(1, self._memory // max(1, per_channel))))
            if part.step > 1:
                part.running().keep_every(part.step)
            size = math.ceil(channels / part.step) * per_channel
            if used and used + size > self._memory:
                turn, used = turn + 1, 0
            part.turn, used = turn, used + size

    def _take_result(self, part: Part) -> None:
        if part.called:
            part.dependence = part.running().dependence()
        # Its counts must not stay in memory.
        part.estimator, part.turn = None, 0


def _parts_of_one_geometry(
    convolutions: Mapping[str, Sequence[Convolution]], make_estimator: EstimatorFactory
) -> list[Part]:
    parts = []
    for name, convs in convolutions.items():
        alike: dict[tuple[Window, int], list[Convolution]] = {}
        for conv in convs:
            alike.setdefault((Window.of_convolution(conv), conv.in_channels), []).append(conv)
        for (window, channels), members in alike.items():
            device = members[0].weight.device
            parts.append(Part(name, members, make_estimator(channels, window, device), device))
    return parts


def _fetched(rows: list[Tensor]) -> list[list[int]]:
    """Return the values of all rows, with one wait for the device."""
    values = torch.cat([row.to(rows[0].device) for row in rows]).tolist()
    found, start = [], 0
    for row in rows:
        found.append(values[start : start + len(row)])
        start += len(row)
    return found
