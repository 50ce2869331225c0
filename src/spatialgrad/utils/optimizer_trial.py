"""Trial: how an optimizer treats gradients, found by stepping a scratch parameter through a fresh one."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.utils.loaders import RandomStates

# Enough for optimizers that become adaptive only after some steps, and for averages over every few steps.
STEPS = 12
# How far a share may be from 1, as optimizers may also depend on the weights themselves, such as on their norm.
TOLERANCE = 0.25
# Choices of an implementation, which do not change what is computed but may not be available for a scratch parameter.
_IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
# What belongs to the parameters of a group, or was written there by schedulers and steps.
_OWN = {"params", "param_names", "initial_lr", "step"}
_FACTOR = 4.0
_LR, _DECAY = 0.01, 0.1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was found about an optimizer."""

    linear: bool
    """Whether the change of the weights is linear in the gradients."""
    passed_on: float
    """Share of a factor on some of a gradient's entries that arrives at these entries' change: 1 is all, 0 nothing."""
    update_passed_on: float
    """The same of a factor on these entries' changes: not 1 if steps do not begin where the last scaled one ended, and
    NaN if nothing changes."""
    decoupled_decay: bool
    """Whether weights decay by lr · weight_decay beside the update, and not as part of the gradient."""

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
    settings, entries = _settings(optimizer, parameter)
    states = RandomStates()
    try:
        # Some classes, such as Muon with its AdamW for biases, accept nothing but groups with entries of their own.
        for group in ({}, entries) if entries else ({},):
            try:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    return _trial(partial(_run, type(optimizer), settings, group), parameter)
            except Exception:
                # Whatever a class of somebody else's raises here: it cannot be tried in this way.
                continue
    finally:
        states.restore()
    return None


def _trial(run: Callable[..., list[Tensor]], parameter: Tensor) -> Trial:
    """Repeat the same few steps with one thing changed."""
    shape, generator = (4, 3, *parameter.shape[2:]), torch.Generator().manual_seed(0)
    target = parameter.device, torch.float32 if parameter.device.type == "mps" else torch.float64
    # Not zeros: optimizers may compare the size of a gradient to that of the weights.
    start = (torch.randn(shape, generator=generator, device="cpu") * 0.1).to(*target)
    gradients = torch.randn(STEPS, *shape, generator=generator, device="cpu").to(*target)
    half = torch.zeros_like(start)
    half[::2] = 1
    some = 1 + (_FACTOR - 1) * half
    once = run(start, gradients)
    # If W is linear in the factor, from −1 to 1 is twice as far as from 1 to 2.
    slope = (once[-1] - run(start, -gradients)[-1]) / 2
    # Weight decay counteracts a factor, and two rounds are enough for weights that return every few steps.
    twice = torch.cat([gradients, gradients])
    plain, scaled = run(start, twice, decay=0.0), run(start, twice, decay=0.0, scaling=some)
    # Over several steps: at first, momentum does not show, and some optimizers are not adaptive.
    decayed = run(start, torch.zeros_like(gradients), decay=_DECAY)[-1] - start
    expected = ((1 - _LR * _DECAY) ** STEPS - 1) * start
    return Trial(
        linear=_is_small(run(start, 2 * gradients)[-1] - once[-1] - slope, slope),
        passed_on=_arrived(once, run(start, some * gradients), half),
        update_passed_on=_arrived(plain, scaled, half),
        decoupled_decay=_is_small(decayed - expected, expected),
    )


def _run(
    kind: type[Optimizer],
    settings: dict[str, Any],
    entries: dict[str, Any],
    start: Tensor,
    gradients: Tensor,
    *,
    scaling: Tensor | None = None,
    decay: float | None = None,
) -> list[Tensor]:
    """Return the weights after each step; `scaling` multiplies their changes, and `decay` is another weight decay."""
    torch.default_generator.manual_seed(0)
    scratch = nn.Parameter(start.clone())
    settings, entries = copy.deepcopy((settings, entries))
    for values in (settings, entries):
        if decay is not None and "weight_decay" in values:
            values["weight_decay"] = decay
    optimizer = kind([{**entries, "params": [scratch]}] if entries else [scratch], **settings)
    if callable(begin := getattr(optimizer, "train", None)):
        begin()  # schedule-free optimizers refuse to step otherwise
    found = []
    for gradient in gradients:
        scratch.grad = gradient.clone()
        before = scratch.detach().clone()
        optimizer.step()
        if scaling is not None:
            scratch.sub_(before).mul_(scaling).add_(before)
        found.append(scratch.detach().clone())
    return found


def _arrived(plain: list[Tensor], stronger: list[Tensor], half: Tensor) -> float:
    """Return the share of a factor on half of the entries that arrives at their change."""
    # Not the first steps: some optimizers are not adaptive at the very beginning.
    halfway = STEPS // 2
    growth = (stronger[-1] - stronger[halfway]).abs() / (plain[-1] - plain[halfway]).abs()
    inside, outside = growth[half == 1].nanmedian(), growth[half == 0].nanmedian()
    return math.log(max(float(inside / outside), 1e-9)) / math.log(_FACTOR)


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
            values["lr"] = _LR  # a schedule may start at 0
    return settings, entries


def _is_small(difference: Tensor, compared_with: Tensor) -> bool:
    """Return whether a difference is rounding alone; never if anything is NaN."""
    return bool(difference.abs().max() <= 1e-3 * compared_with.abs().max())
