"""SpatialGradientScaling: holds one G per convolution and multiplies with it whenever the optimizer steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.dependence import Autocorrelation, Estimator, FunctionEstimator, MutualInformation, Window
from spatialgrad.sgs.dependence.estimator import DependenceFunction
from spatialgrad.sgs.dependence.mutual_information import check_bins
from spatialgrad.sgs.layers import select_convolutions, summarize_skipped
from spatialgrad.sgs.matrices import informative_channels, scaling_from_dependence
from spatialgrad.sgs.measure import measure_dependence
from spatialgrad.sgs.step_hook import (
    APPLY,
    Apply,
    NoEffectWarning,
    StepHook,
    check_not_scaled_twice,
    check_scaling,
    choose_place,
)
from spatialgrad.torch_utils.distributed import local_part
from spatialgrad.torch_utils.loaders import Forward
from spatialgrad.torch_utils.modules import Convolution, Predicate
from spatialgrad.torch_utils.optimizers import parameter_ids, unwrap_optimizers

Dependence = Literal["mutual-information", "autocorrelation"]


class SpatialGradientScaling:
    """Scales the gradient of every k×k convolution, position by position, whenever the optimizer steps.

    Args:
        model: Any module; its convolutions are found by themselves.
        optimizer: The optimizer that holds the model's parameters, or a wrapper around it; a list if there are several.
        k: How much weight a small dependence gets already; see `scaling_from_dependence`.
        dependence: What the scalings are measured by: ``"mutual-information"``, ``"autocorrelation"``, a function
            ``f(maps, kernel_size, *, padding, dilation, padding_mode) -> S``, or None for static scalings.
        warmup: Epochs before the first update.
        every: Epochs between two updates.
        include: ``(name, module) -> bool``: only these convolutions take part.
        exclude: ``(name, module) -> bool``: these do not.
        apply: ``"gradient"`` multiplies the gradient before the optimizer uses it (the paper's default);
            ``"update"`` multiplies what the optimizer changed (the paper's Adagrad*); ``"auto"`` takes ``"gradient"``
            for optimizers that are linear in the gradient and ``"update"`` for all others.
        scalings: Scalings to start with: by qualified name, or one for every convolution of its kernel size. All
            others start with ones, which change nothing.
        bins: Histogram bins of the mutual information: ``"sturges"`` or a number.
        drop_near: The paper's ImageNet variant of the mutual information.
        process_group: The processes that train together; by default all of them.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> sgs = SpatialGradientScaling(model, optimizer)
        >>> _ = sgs.update(torch.rand(4, 3, 16, 16))
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        k: float = 5.0,
        *,
        dependence: Dependence | DependenceFunction | None = "mutual-information",
        warmup: int = 1,
        every: int = 5,
        include: Predicate | None = None,
        exclude: Predicate | None = None,
        apply: Apply = "gradient",
        scalings: Mapping[str, Tensor] | Tensor | None = None,
        bins: int | str = "sturges",
        drop_near: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_settings(k, dependence, warmup, every, apply, bins)
        self.k, self.dependence, self.warmup, self.every = k, dependence, warmup, every
        self.bins, self.drop_near, self.process_group = bins, drop_near, process_group
        self.num_updates = 0
        self._model, self._requested_apply = model, apply
        self._convolutions, self.skipped = select_convolutions(model, include, exclude)
        if not self._convolutions:
            raise ValueError(
                f"{type(model).__name__} has no convolution to scale: "
                f"{summarize_skipped(self.skipped) or 'it has no convolutions'}."
            )
        for name in self._not_held_by(unwrap_optimizers(optimizer)):
            del self._convolutions[name]
            self.skipped[name] = "its weight is not in this optimizer"
        if not self._convolutions:
            raise ValueError(
                "The optimizer holds none of the model's convolution weights. Build it from model.parameters(), after "
                "the model was moved, wrapped or sharded."
            )
        # As large as one filter and laid out like it: a product over whole rows is several times faster than a
        # broadcast over 3×3. Fixed for good, so that captured graphs see new values.
        self._filters = {
            name: _filter_of_ones(convs[0], local_part(convs[0].weight.detach()))
            for name, convs in self._convolutions.items()
        }
        self._reported: set[str] = set()
        self._hooks: list[StepHook] = []
        if scalings is not None:
            self.set_scalings(scalings)
        self.attach(optimizer)

    def attach(self, optimizer: Any) -> None:
        """Scale whenever this optimizer (or one of a list) steps, and no other; a copied one has lost its hooks."""
        optimizers = unwrap_optimizers(optimizer)
        missing = self._not_held_by(optimizers)
        if missing:
            raise ValueError(f"The optimizer does not hold the weights of {', '.join(missing)}.")
        check_not_scaled_twice(optimizers, self._hooks, [convs[0].weight for convs in self._convolutions.values()])
        self.detach()
        for inner in optimizers:
            held = parameter_ids(inner)
            names = [name for name, convs in self._convolutions.items() if id(convs[0].weight) in held]
            if names:
                place = choose_place(self._requested_apply, inner)
                self._hooks.append(StepHook(inner, place, partial(self._weights_and_filters, names)))

    def detach(self) -> None:
        """Stop scaling; the scalings stay."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def apply(self) -> Apply:
        """Where the scalings are applied; ``"auto"`` only if that differs between optimizers, or while detached."""
        places = {hook.apply for hook in self._hooks}
        return places.pop() if len(places) == 1 else self._requested_apply

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hooks": [hook.optimizer for hook in self._hooks]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Optimizers do not take their hooks along when they are copied.
        self.__dict__.update({**state, "_hooks": []})
        if state["_hooks"]:
            self.attach(state["_hooks"])

    def __enter__(self) -> SpatialGradientScaling:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def due(self, epoch: int) -> bool:
        """Whether the scalings should be updated before this epoch (counted from 0)."""
        if self.dependence is None or epoch < self.warmup:
            return False
        return epoch == self.warmup or epoch % self.every == 0

    def update(
        self, data: Any, batches: int | None = None, *, forward: Forward | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """Measure the input maps of all convolutions and replace every scaling; nothing else changes.

        Args:
            data: A loader, a list of batches, or one batch. Batches may be tensors, (x, y) tuples, or dicts.
            batches: How many batches to use; by default 2 of a loader and all of a list.
            forward: ``forward(model, batch)`` where the model is not called as ``model(x)`` or ``model(**batch)``.
            seed: What a shuffling loader draws its batches from, instead of the present random states: a training
                that resumes here then measures the same ones.

        Returns:
            The new scalings by qualified name.
        """
        if self.dependence is None:
            raise RuntimeError("These scalings are static (dependence=None); use set_scalings to change them.")
        found = measure_dependence(
            self._model,
            self._convolutions,
            self._estimator,
            data,
            batches=batches,
            forward=forward,
            seed=seed,
            group=self.process_group,
        )
        new = {name: self._scaling(name, S) for name, S in found.items()}
        self._report_once([n for n in self._filters if n not in found], "were not called in the forward pass")
        idle = [name for name, S in found.items() if not bool(informative_channels(S).any())]
        self._report_once(idle, "have inputs without information, and keep a uniform scaling")
        self._copy(new)
        self.num_updates += 1
        return self.scalings

    @property
    def scalings(self) -> dict[str, Tensor]:
        """A copy of the current G of every convolution, by qualified name."""
        return {name: _kernel_of(values).clone() for name, values in self._filters.items()}

    def set_scalings(self, scalings: Mapping[str, Tensor] | Tensor) -> None:
        """Replace scalings by given ones.

        Args:
            scalings: G by qualified name, or one G for every convolution of its kernel size.
        """
        if isinstance(scalings, Tensor):
            shape = tuple(scalings.shape)
            scalings = {n: scalings for n, c in self._convolutions.items() if tuple(c[0].kernel_size) == shape}
            if not scalings:
                raise ValueError(f"No convolution has a kernel of shape {shape}.")
        unknown = sorted(set(scalings) - set(self._filters))
        if unknown:
            reasons = [f"{n} ({self.skipped.get(n, 'no such convolution')})" for n in unknown]
            raise KeyError(f"Cannot scale {', '.join(reasons)}; choose from {', '.join(self._filters)}.")
        for name, scaling in scalings.items():
            check_scaling(name, scaling, tuple(self._convolutions[name][0].kernel_size))
        self._copy(scalings)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs: the scalings and the number of updates."""
        return {"scalings": self.scalings, "num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the scalings of a checkpoint; refuses one of another architecture and then changes nothing."""
        if not {"scalings", "num_updates"} <= set(state):
            raise ValueError(f"Not a state_dict of SpatialGradientScaling: it holds {', '.join(state) or 'nothing'}.")
        missing = sorted(set(self._filters) - set(state["scalings"]))
        unexpected = sorted(set(state["scalings"]) - set(self._filters))
        if missing or unexpected:
            raise ValueError(
                "The state_dict is of another architecture: "
                f"missing {', '.join(missing) or 'nothing'}, unexpected {', '.join(unexpected) or 'nothing'}."
            )
        self.set_scalings(state["scalings"])
        self.num_updates = int(state["num_updates"])

    def __repr__(self) -> str:
        kind = self.dependence if isinstance(self.dependence, str | None) else _name_of(self.dependence)
        where = " and ".join(type(hook.optimizer).__name__ for hook in self._hooks) or "nothing (detached)"
        schedule = "static" if self.dependence is None else f"warmup={self.warmup}, every={self.every}"
        return (
            f"SpatialGradientScaling({len(self._filters)} convolutions, {len(self.skipped)} skipped, "
            f"dependence={kind!r}, k={self.k:g}, apply={self.apply!r}, {schedule}, "
            f"updates={self.num_updates}, attached to {where})"
        )

    def _estimator(self, conv: Convolution) -> Estimator:
        window, device = Window.of_convolution(conv), conv.weight.device
        if self.dependence == "mutual-information":
            return MutualInformation(conv.in_channels, window, device, bins=self.bins, drop_near=self.drop_near)
        if self.dependence == "autocorrelation":
            return Autocorrelation(conv.in_channels, window, device)
        assert callable(self.dependence)  # checked at construction
        return FunctionEstimator(self.dependence, conv.in_channels, window, device)

    def _scaling(self, name: str, dependence: Tensor) -> Tensor:
        try:
            return scaling_from_dependence(dependence, self.k)
        except ValueError as error:
            raise ValueError(f"Cannot scale {name!r}: {error}") from error

    def _copy(self, scalings: Mapping[str, Tensor]) -> None:
        for name, scaling in scalings.items():
            self._filters[name].copy_(scaling)

    def _report_once(self, names: list[str], what: str) -> None:
        new = [name for name in names if name not in self._reported]
        if new:
            self._reported.update(new)
            warnings.warn(f"Convolutions {', '.join(new)} {what}.", NoEffectWarning, stacklevel=3)

    def _not_held_by(self, optimizers: list[Optimizer]) -> list[str]:
        held = set().union(*map(parameter_ids, optimizers))
        return [name for name, convs in self._convolutions.items() if id(convs[0].weight) not in held]

    def _weights_and_filters(self, names: list[str]) -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for name in names:
            # Looked up each time: wrappers may replace parameters and move them.
            weight, values = self._convolutions[name][0].weight, self._filters[name]
            if not weight.is_leaf:
                self._report_once([name], "were parametrized or pruned after the scaling was built, and are not scaled")
                continue
            if values.device != weight.device:
                values = self._filters[name] = values.to(weight.device)
            pairs.append((weight, values))
        return pairs


def _filter_of_ones(conv: Convolution, weight: Tensor) -> Tensor:
    """Ones in the shape and memory layout of one filter of the (local part of the) weight."""
    if tuple(weight.shape[2:]) != tuple(conv.kernel_size):
        raise ValueError(f"The kernel of {conv} is sharded along a spatial dimension, which cannot be scaled.")
    dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
    if len(weight) == 0:  # an empty shard
        return weight.new_ones(weight.shape[1:], dtype=dtype)
    return torch.ones_like(weight[0], dtype=dtype)


def _kernel_of(values: Tensor) -> Tensor:
    return values[0].contiguous()


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def check_settings(k: float, dependence: Any, warmup: int, every: int, apply: str, bins: int | str) -> None:
    """Raise `ValueError` for settings that `SpatialGradientScaling` cannot work with."""
    if not (math.isfinite(k) and k > 0):
        raise ValueError(f"Invalid k: {k}; it must be a positive number (the paper's default is 5).")
    if not (dependence in ("mutual-information", "autocorrelation", None) or callable(dependence)):
        raise ValueError(
            f"Invalid dependence: {dependence!r}; choose 'mutual-information', 'autocorrelation', a function or None."
        )
    if warmup < 0 or every < 1:
        raise ValueError(f"Invalid schedule: warmup={warmup} must be at least 0 and every={every} at least 1.")
    if apply not in APPLY:
        raise ValueError(f"Invalid apply: {apply!r}; choose from {', '.join(APPLY)}.")
    check_bins(bins)
