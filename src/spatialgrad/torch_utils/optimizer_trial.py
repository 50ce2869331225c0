"""Trial: how an optimizer treats gradients, found out by stepping a scratch parameter through a fresh one."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Enough for optimizers that become adaptive only after some steps, and for averages over every few steps.
STEPS = 12
# How far a share may be from 1, as optimizers may also depend on the weights themselves, such as on their norm.
TOLERANCE = 0.25
# Choices of an implementation, which do not change what is computed but may not be available for a scratch parameter.
_IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
# What belongs to the parameters of a group, or was written there by schedulers and steps.
_OWN = {"params", "param_names", "initial_lr", "step"}
_FACTOR = 4.0
_SHIFT = 1000.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was found out about an optimizer."""

    linear: bool
    """Whether the change of the weights is linear in the gradients."""
    passed_on: float
    """Share of a factor on some of a gradient's entries that arrives at these entries' change: 1 is all, 0 nothing."""
    update_passed_on: float
    """The same of a factor on these entries' changes: not 1 if steps do not begin where the last scaled one ended, and
    NaN if nothing changes."""
    own_copies: tuple[str, ...]
    """Where it is not 1: parts of the optimizer's state that hold weights, from which it calculates the next ones."""

    @property
    def adds_up(self) -> bool:
        """Whether the whole of a factor on the changes arrives."""
        return math.isnan(self.update_passed_on) or abs(self.update_passed_on - 1) <= TOLERANCE


def try_optimizer(optimizer: Optimizer, parameter: Tensor) -> Trial | None:
    """Step a scratch parameter through fresh optimizers with the class and settings of a given one.

    Args:
        optimizer: The optimizer; it does not change.
        parameter: One of its parameters, whose settings count.

    Returns:
        None if no fresh optimizer can be made, or if it cannot be stepped without a closure.
    """
    devices = [parameter.device] if parameter.device.type == "cuda" else []
    settings, entries = _settings(optimizer, parameter)
    # Some classes, such as Muon with its AdamW for biases, accept nothing but groups with entries of their own.
    for group in ({}, entries) if entries else ({},):
        try:
            with torch.random.fork_rng(devices), warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                return _Laboratory(type(optimizer), settings, group, parameter).trial()
        except Exception:
            # Whatever a class of somebody else's raises here: it cannot be tried in this way.
            continue
    return None


class _Laboratory:
    """Repeats the same few steps with one thing changed."""

    def __init__(
        self, kind: type[Optimizer], settings: Mapping[str, Any], entries: Mapping[str, Any], parameter: Tensor
    ) -> None:
        self._kind, self._settings, self._entries = kind, settings, entries
        shape = (4, 3, *parameter.shape[2:])
        generator = torch.Generator().manual_seed(0)
        dtype = torch.float32 if parameter.device.type == "mps" else torch.float64
        device = parameter.device
        # Not zeros: optimizers may compare the size of a gradient to that of the weights.
        self._start = torch.randn(shape, generator=generator).to(device, dtype) * 0.1
        self._gradients = torch.randn(STEPS, *shape, generator=generator).to(device, dtype)
        self._half = torch.zeros(shape, device=device, dtype=dtype)
        self._half[::2] = 1

    def trial(self) -> Trial:
        once, twice, reverse = (self._run(factor).weights for factor in (1.0, 2.0, -1.0))
        # If W is linear in the factor, from −1 to 1 is twice as far as from 1 to 2.
        slope = (once - reverse) / 2
        linear = _size(twice - once - slope) <= 1e-3 * _size(slope)
        some = 1 + (_FACTOR - 1) * self._half
        passed_on = self._arrived(self._run(1.0), self._run(some))
        # Weight decay counteracts a factor, and two rounds are enough for weights that return every few steps.
        plain, scaled = (self._run(1.0, scaling=scaling, rounds=2, weight_decay=0.0) for scaling in (None, some))
        trial = Trial(linear=linear, passed_on=passed_on, update_passed_on=self._arrived(plain, scaled), own_copies=())
        return trial if trial.adds_up else replace(trial, own_copies=self._own_copies())

    def _arrived(self, plain: _Run, stronger: _Run) -> float:
        """Return the share of a factor on some entries that arrives at their change."""
        # Not the first steps: some optimizers are not adaptive at the very beginning.
        growth = (stronger.weights - stronger.halfway).abs() / (plain.weights - plain.halfway).abs()
        inside, outside = growth[self._half == 1].nanmedian(), growth[self._half == 0].nanmedian()
        return math.log(max(float(inside / outside), 1e-9)) / math.log(_FACTOR)

    def _own_copies(self) -> tuple[str, ...]:
        # Weight decay lets every part of the state follow the weights.
        still: dict[str, Any] = {"weight_decay": 0.0}
        state, shifted = self._run(1.0, **still).state, self._run(1.0, shift=_SHIFT, **still).state
        copies = [name for name, values in state.items() if _size(shifted[name] - values - _SHIFT) <= 1e-2 * _SHIFT]
        undisturbed = self._run(1.0, rounds=2, **still).weights
        # A mere record, such as an average for evaluation, does no harm.
        return tuple(
            name for name in copies if _size(self._run(1.0, rounds=2, disturb=name, **still).weights - undisturbed) > 0
        )

    def _run(
        self,
        factor: float | Tensor,
        *,
        scaling: Tensor | None = None,
        shift: float = 0.0,
        rounds: int = 1,
        disturb: str | None = None,
        **changes: Any,
    ) -> _Run:
        """Step with the gradients multiplied by a factor.

        Args:
            factor: Multiplies every gradient.
            scaling: Multiplies every change of the weights.
            shift: Added to the initial weights.
            rounds: How many times to go through all gradients.
            disturb: A part of the state to change before the second round.
            **changes: Other values for settings, where they exist.
        """
        torch.manual_seed(0)
        scratch = nn.Parameter(self._start + shift)
        entries = _with(changes, self._entries)
        parameters: Any = [{**entries, "params": [scratch]}] if entries else [scratch]
        optimizer = self._kind(parameters, **_with(changes, self._settings))
        if callable(begin := getattr(optimizer, "train", None)):
            begin()  # schedule-free optimizers refuse to step otherwise
        halfway = self._start
        for number in range(rounds):
            if number == 1 and disturb is not None:
                optimizer.state[scratch][disturb].add_(1.0)
            for step, gradient in enumerate(self._gradients):
                scratch.grad = gradient * factor
                before = scratch.detach().clone()
                optimizer.step()
                if scaling is not None:
                    scratch.sub_(before).mul_(scaling).add_(before)
                if number == 0 and step == STEPS // 2:
                    halfway = scratch.detach().clone()
        state = {
            name: value.detach().clone()
            for name, value in optimizer.state[scratch].items()
            if isinstance(value, Tensor) and value.shape == scratch.shape and value.is_floating_point()
        }
        return _Run(scratch.detach(), halfway, state)


class _Run(NamedTuple):
    weights: Tensor
    halfway: Tensor
    state: dict[str, Tensor]
    """The parts of the optimizer's state that have the shape of the weights."""


def _settings(optimizer: Optimizer, parameter: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments with which a parameter's optimizer can be built again, and its group's other entries."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    accepted = inspect.signature(type(optimizer)).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    settings = {
        name: group.get(name, default)
        for name, default in optimizer.defaults.items()
        if (name in accepted or anything) and name not in _IMPLEMENTATION
    }
    entries = {name: value for name, value in group.items() if name not in optimizer.defaults and name not in _OWN}
    for values in (settings, entries):
        if "lr" in values:
            values["lr"] = 0.01  # a schedule may start at 0
    return settings, entries


def _with(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of settings with some of the values changed."""
    return {name: changes.get(name, copy.deepcopy(value)) for name, value in settings.items()}


def _size(difference: Tensor) -> float:
    """Return the largest absolute value; infinite for NaN."""
    size = float(difference.abs().max())
    return math.inf if math.isnan(size) else size
