"""SpatialGradientScaling: holds one G per convolution and multiplies by it whenever the optimizer steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.dependence.estimator import DependenceFunction
from spatialgrad.sgs.filters import Filters
from spatialgrad.sgs.layers import (
    ELSEWHERE,
    FUNCTIONAL,
    FunctionalConvolutions,
    newcomers,
    select_convolutions,
    summarize_skipped,
)
from spatialgrad.sgs.matrices import NO_DEPENDENCE, check_measured, mean_dependence, scaling_from_dependence
from spatialgrad.sgs.measure import Dependence, estimator_factory, measure_dependence
from spatialgrad.sgs.place import Place, choose_place
from spatialgrad.sgs.settings import check_settings, is_count, shared_settings
from spatialgrad.sgs.step_hook import Apply, NoEffectWarning, StepHook, check_not_scaled_twice
from spatialgrad.torch_utils.distributed import check_agreement
from spatialgrad.torch_utils.loaders import Forward
from spatialgrad.torch_utils.modules import Predicate, for_one_process, unwrap_model
from spatialgrad.torch_utils.optimizers import parameter_ids, unwrap_optimizers


class SpatialGradientScaling:
    """Scales the gradient of every k×k convolution, position by position, whenever the optimizer steps.

    Args:
        model: Any module; its convolutions are detected automatically.
        optimizer: The optimizer that holds the model's parameters, or a wrapper around it; a list if there are several.
        k: Larger k flattens G; k = 1 uses S as it is. See `scaling_from_dependence`.
        dependence: How S is measured: ``"mutual-information"``, ``"autocorrelation"``, a function
            ``f(maps, kernel_size, *, padding, dilation, padding_mode) -> S``, or None for static scalings.
        warmup: Number of epochs before the first update.
        every: Number of epochs between two updates; see `due`.
        include: ``(name, module) -> bool``: only these convolutions take part.
        exclude: ``(name, module) -> bool``: these do not.
        apply: ``"gradient"`` multiplies the gradient before the optimizer uses it, as the paper does except for
            Adagrad*; ``"update"`` multiplies the change that the optimizer made; ``"auto"`` chooses ``"gradient"``
            for optimizers that are linear in the gradient and ``"update"`` for all others.
        scalings: Initial scalings: by qualified name, or one for every convolution of its kernel size. All others
            start as ones, which change nothing.
        bins: Histogram bins of the mutual information: ``"sturges"`` or a number.
        drop_near: Use the paper's ImageNet variant of the mutual information.
        process_group: The processes that train together; by default all of them.

    Attributes:
        measure: The argument `dependence`: how S is measured.
        num_updates: Number of updates so far.
        skipped: The reason for every convolution that takes no part, by qualified name.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> sgs = SpatialGradientScaling(model, optimizer)
        >>> [epoch for epoch in range(20) if sgs.due(epoch)]
        [1, 5, 10, 15]
        >>> scalings = sgs.update(torch.rand(4, 3, 16, 16))
        >>> scalings["0"].shape
        torch.Size([3, 3])
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
        apply: Apply = "auto",
        scalings: Mapping[str, Tensor] | Tensor | None = None,
        bins: int | str = "sturges",
        drop_near: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_settings(k, dependence, warmup, every, apply, bins)
        self.k, self.measure, self.warmup, self.every = k, dependence, warmup, every
        self.bins, self.drop_near, self.process_group = bins, drop_near, process_group
        self.num_updates = 0
        self._requested_apply = apply
        module = unwrap_model(model)
        self._model = for_one_process(model)
        self._convolutions, self.skipped = select_convolutions(module, include, exclude)
        if not self._convolutions:
            raise ValueError(
                f"{type(module).__name__} has no convolution to scale: "
                f"{summarize_skipped(self.skipped) or 'it has no convolutions'}."
            )
        names = self._names_by_optimizer(unwrap_optimizers(optimizer))
        for name in self._missing(names):
            del self._convolutions[name]
            self.skipped[name] = ELSEWHERE
        if not self._convolutions:
            raise ValueError(
                "The optimizer holds none of the model's convolution weights. Build it from model.parameters(), after "
                "the model was moved, wrapped or sharded."
            )
        self._filters = Filters({name: convs[0] for name, convs in self._convolutions.items()})
        self._dependence: dict[str, Tensor] = {}
        self._reported: set[str] = set()
        self._hooks: list[StepHook] = []
        self._places: list[Place] = []
        if scalings is not None:
            self.set_scalings(scalings)
        self._attach(names)

    def attach(self, optimizer: Any) -> None:
        """Scale whenever this optimizer (or one of a list) steps, and no other; copied optimizers lose their hooks."""
        names = self._names_by_optimizer(unwrap_optimizers(optimizer))
        missing = self._missing(names)
        if missing:
            raise ValueError(f"The optimizer does not hold the weights of {', '.join(missing)}.")
        self._attach(names)

    def detach(self) -> None:
        """Stop scaling; the scalings are kept."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def apply(self) -> Apply:
        """Where the scalings are applied; ``"auto"`` only if that differs between optimizers, or while detached."""
        found = {hook.apply for hook in self._hooks}
        return found.pop() if len(found) == 1 else self._requested_apply

    def due(self, epoch: int) -> bool:
        """Return whether the scalings should be updated before this epoch.

        That is before epoch `warmup`, and then before every epoch that is a multiple of `every`. Epochs count from 0:
        with ``warmup=1, every=5``, updates come before epochs 1, 5, 10, 15, …
        """
        if self.measure is None or epoch < self.warmup:
            return False
        return epoch == self.warmup or epoch % self.every == 0

    def update(
        self, data: Any, batches: int | None = None, *, forward: Forward | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """Measure the input maps of all convolutions and replace every scaling; nothing else changes.

        Args:
            data: A loader, a list of batches, or one batch. Batches may be tensors, (x, y) tuples, or dicts.
            batches: Number of batches; by default 2 of a loader and all of a list.
            forward: ``forward(model, batch)`` if the model is not called as ``model(x)`` or ``model(**batch)``.
            seed: Seed from which a shuffling loader draws its batches, instead of the current random states. A
                training run that resumes here then measures the same batches.

        Returns:
            The new scalings by qualified name.
        """
        shared = shared_settings(self._convolutions, self.measure, self.bins, self.drop_near, self.k)
        check_agreement(shared, next(self._model.parameters()).device, self.process_group)
        if self.measure is None:
            raise RuntimeError("These scalings are static (dependence=None); use set_scalings to change them.")
        with FunctionalConvolutions(unwrap_model(self._model)) as functional:
            found = measure_dependence(
                self._model,
                self._convolutions,
                estimator_factory(self.measure, bins=self.bins, drop_near=self.drop_near),
                data,
                batches=batches,
                forward=forward,
                seed=seed,
                group=self.process_group,
            )
        new = {name: self._scaling(name, S) for name, S in found.items()}
        self._report_once([n for n in self._convolutions if n not in found], "were not called in the forward pass")
        means = {name: mean_dependence(S) for name, S in found.items()}
        idle = [name for name, S in means.items() if bool(S.isnan().any())]
        self._report_once(idle, "have inputs without information and keep a uniform scaling")
        independent = [name for name, S in means.items() if bool((S <= NO_DEPENDENCE).all())]
        self._report_once(independent, "have inputs without spatial dependence (S = 0) and keep a uniform scaling")
        self.skipped |= dict.fromkeys(sorted(functional.found), FUNCTIONAL)
        self._report_once(
            sorted(functional.found),
            "are parameters that the model convolves with by itself; only convolution modules (nn.Conv2d) are scaled",
        )
        trained = {key for hook in self._hooks for key in parameter_ids(hook.optimizer)}
        self._report_once(
            newcomers(self._model, self.skipped, trained),
            "can be trained only since the scaling was created, and are not scaled; create it again",
        )
        self._filters.copy_(new)
        self._dependence = {name: S for name, S in (self._dependence | means).items() if name not in idle}
        self.num_updates += 1
        return self.scalings

    @property
    def scalings(self) -> dict[str, Tensor]:
        """A copy of the current G of every convolution, by qualified name."""
        return self._filters.scalings()

    @property
    def dependence(self) -> dict[str, Tensor]:
        """A copy of the last measured S of every convolution, by qualified name.

        S is averaged over the channels that carry information, so its shape is the kernel size. A convolution is
        missing before its first update, and if none of its channels carried information in the last one.
        """
        return {name: S.clone() for name, S in self._dependence.items()}

    def set_scalings(self, scalings: Mapping[str, Tensor] | Tensor) -> None:
        """Replace scalings.

        Args:
            scalings: G by qualified name, or one G for every convolution of its kernel size.
        """
        if isinstance(scalings, Tensor):
            shape = tuple(scalings.shape)
            scalings = dict.fromkeys(self._filters.names_with_kernel(shape), scalings)
            if not scalings:
                raise ValueError(f"No convolution has a kernel of shape {shape}.")
        unknown = sorted(set(scalings) - set(self._convolutions))
        if unknown:
            reasons = [f"{n} ({self.skipped.get(n, 'no such convolution')})" for n in unknown]
            raise KeyError(f"Cannot scale {', '.join(reasons)}; choose from {', '.join(self._convolutions)}.")
        self._filters.check(scalings)
        self._filters.copy_(scalings)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training run needs: scalings, the last dependence, and the number of updates."""
        return {"scalings": self.scalings, "dependence": self.dependence, "num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; an invalid one, or one of another architecture, raises `ValueError` and changes nothing."""
        expected = ("scalings", "dependence", "num_updates")
        if not set(expected) <= set(state):
            raise ValueError(
                f"Not a state_dict of SpatialGradientScaling: it holds {', '.join(state) or 'nothing'} instead of "
                f"{', '.join(expected)}."
            )
        self._filters.check_state(state["scalings"], state["dependence"])
        count = state["num_updates"]
        if not is_count(count):
            raise ValueError(f"Invalid num_updates in the state_dict: {count!r}; it must be an integer of at least 0.")
        self._filters.copy_(state["scalings"])
        self._dependence = {name: S.clone() for name, S in state["dependence"].items()}
        self.num_updates = int(count)

    def __repr__(self) -> str:
        kind: Any = self.measure
        if callable(kind):
            kind = getattr(kind, "__name__", type(kind).__name__)
        where = " and ".join(type(hook.optimizer).__name__ for hook in self._hooks) or "nothing (detached)"
        assumed = " (assumed)" if self._hooks and any(place.assumed for place in self._places) else ""
        schedule = "static" if kind is None else f"warmup={self.warmup}, every={self.every}"
        return (
            f"SpatialGradientScaling({len(self._convolutions)} convolutions, {len(self.skipped)} skipped, "
            f"dependence={kind!r}, k={self.k:g}, apply={self.apply!r}{assumed}, {schedule}, "
            f"updates={self.num_updates}, attached to {where})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hooks": [hook.optimizer for hook in self._hooks]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied optimizer has lost its hooks.
        self.__dict__.update({**state, "_hooks": []})
        if state["_hooks"]:
            self.attach(state["_hooks"])

    def __enter__(self) -> SpatialGradientScaling:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def _names_by_optimizer(self, optimizers: list[Optimizer]) -> dict[Optimizer, list[str]]:
        """Return the convolutions that each optimizer trains."""
        weights = {name: id(convs[0].weight) for name, convs in self._convolutions.items()}
        held = {optimizer: parameter_ids(optimizer) for optimizer in optimizers}
        return {optimizer: [name for name, key in weights.items() if key in ids] for optimizer, ids in held.items()}

    def _missing(self, names: Mapping[Optimizer, list[str]]) -> list[str]:
        held = {name for group in names.values() for name in group}
        return [name for name in self._convolutions if name not in held]

    def _attach(self, names: Mapping[Optimizer, list[str]]) -> None:
        if sum(map(len, names.values())) > len(self._convolutions):
            raise ValueError("A convolution's weight is in several of the optimizers: each would scale it.")
        check_not_scaled_twice(list(names), self._hooks, [convs[0].weight for convs in self._convolutions.values()])
        chosen = {
            optimizer: choose_place(self._requested_apply, optimizer, self._convolutions[own[0]][0].weight)
            for optimizer, own in names.items()
            if own
        }
        self.detach()
        self._places = list(chosen.values())
        for optimizer, place in chosen.items():
            pairs = partial(self._weights_and_filters, names[optimizer])
            self._hooks.append(StepHook(optimizer, place.apply, pairs))
        for reason in dict.fromkeys(place.no_effect for place in self._places if place.no_effect):
            self._warn_once(reason)

    def _weights_and_filters(self, names: list[str]) -> list[tuple[Tensor, Tensor]]:
        pairs = {name: self._filters.pair(name) for name in names}
        lost = [name for name, pair in pairs.items() if pair is None]
        if lost:
            self._report_once(lost, "were parametrized or pruned after the scaling was built and are not scaled")
        return [pair for pair in pairs.values() if pair is not None]

    def _scaling(self, name: str, dependence: Tensor) -> Tensor:
        try:
            scaling = scaling_from_dependence(dependence, self.k)
            check_measured(name, scaling)
            return scaling
        except ValueError as error:
            raise ValueError(f"Cannot scale {name!r}: {error}") from error

    def _report_once(self, names: list[str], what: str) -> None:
        new = [name for name in names if f"{name} {what}" not in self._reported]
        if new:
            self._reported.update(f"{name} {what}" for name in new)
            warnings.warn(f"Convolutions {', '.join(new)} {what}.", NoEffectWarning, stacklevel=3)

    def _warn_once(self, what: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            warnings.warn(f"{what}.", NoEffectWarning, stacklevel=4)
