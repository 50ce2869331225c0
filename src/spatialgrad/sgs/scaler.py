"""SpatialGradientScaling: holds one G per convolution and multiplies by it whenever the optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.apply import Apply
from spatialgrad.sgs.attachment import Attachment
from spatialgrad.sgs.dependence.estimator import DependenceFunction
from spatialgrad.sgs.filters import Filters
from spatialgrad.sgs.functional import FUNCTIONAL, FunctionalConvolutions, FunctionalConvolutionsHook
from spatialgrad.sgs.layers import names_without_optimizer, trained_convolutions
from spatialgrad.sgs.live import Live, LiveUpdates
from spatialgrad.sgs.measure import Dependence, estimator_factory, measure_dependence
from spatialgrad.sgs.measurement import Measurement
from spatialgrad.sgs.newcomers import Newcomers
from spatialgrad.sgs.outcome import Outcome, outcome_of
from spatialgrad.sgs.passes import check_observable
from spatialgrad.sgs.reports import Reports
from spatialgrad.sgs.settings import EVERY, WARMUP, check_settings, kind_of, live_schedule, shared_settings
from spatialgrad.torch_utils.distributed import check_agreement
from spatialgrad.torch_utils.loaders import Forward
from spatialgrad.torch_utils.modules import Predicate, for_one_process, unwrap_model
from spatialgrad.torch_utils.numbers import bytes_of
from spatialgrad.torch_utils.optimizers import unwrap_optimizers


class SpatialGradientScaling:
    """Scales the gradient of every k×k convolution, position by position, whenever the optimizer steps.

    Args:
        model: Any module; its convolutions are detected automatically.
        optimizer: The optimizer that holds the model's parameters, or a wrapper around it; a list if there are several.
        k: Larger k flattens G; k = 1 uses S as it is. See `scaling_from_dependence`.
        dependence: How S is measured: ``"mutual-information"``, ``"autocorrelation"``, a function
            ``f(maps, kernel_size, *, padding, dilation, padding_mode) -> S``, or None for static scalings.
        live: Update the scalings from the training's own forward passes: True, or a `Live` with the schedule in steps.
            By default they change only when `update` is called.
        warmup: Number of epochs before the first `update`; see `due`.
        every: Number of epochs between two calls of `update`; see `due`.
        include: ``(name, module) -> bool``: only these convolutions take part.
        exclude: ``(name, module) -> bool``: these do not.
        apply: ``"gradient"`` multiplies the gradient before the optimizer uses it, as the paper does except for
            Adagrad*; ``"update"`` multiplies the change that the optimizer made; ``"auto"`` chooses ``"gradient"``
            for optimizers that are linear in the gradient and ``"update"`` for all others.
        scalings: Initial scalings: by qualified name, or one for every convolution of its kernel size. All others
            start as ones, which change nothing.
        bins: Histogram bins of the mutual information: ``"sturges"`` or a number.
        drop_near: Use the paper's ImageNet variant of the mutual information.
        memory: Upper limit of the memory for the statistics of an update, such as ``"256 MB"``; by default none. If
            the counts of all layers together need more, layers take turns; if those of one layer need more, only some
            of its channels are counted.
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
        >>> sgs.update(torch.rand(4, 3, 16, 16))["0"].shape
        torch.Size([3, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        k: float = 5.0,
        *,
        dependence: Dependence | DependenceFunction | None = "mutual-information",
        live: Live | bool = False,
        warmup: int = WARMUP,
        every: int = EVERY,
        include: Predicate | None = None,
        exclude: Predicate | None = None,
        apply: Apply = "auto",
        scalings: Mapping[str, Tensor] | Tensor | None = None,
        bins: int | str = "sturges",
        drop_near: bool = False,
        memory: int | str | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_settings(k, dependence, warmup, every, apply, bins, live, memory)
        self.k, self.measure, self.warmup, self.every = k, dependence, warmup, every
        self.bins, self.drop_near, self.process_group = bins, drop_near, process_group
        self.memory = None if memory is None else bytes_of(memory)
        self.num_updates = 0
        self._model = for_one_process(model)
        optimizers = unwrap_optimizers(optimizer)
        self._convolutions, self.skipped = trained_convolutions(unwrap_model(model), optimizers, include, exclude)
        self._filters = Filters({name: convs[0] for name, convs in self._convolutions.items()})
        self._dependence: dict[str, Tensor] = {}
        self._reports = Reports()
        self._newcomers = Newcomers(self._model, self._convolutions, self.skipped, (include, exclude), self._reports)
        self._attachment = Attachment(apply, self._convolutions, self._filters, self._reports)
        schedule = live_schedule(live)
        self._live: LiveUpdates | None = None
        if schedule is not None:
            check_observable(model)
            self._live = LiveUpdates(
                schedule, self._start_live, self._finish_live, self._check_agreement, self._watch_functional
            )
        if scalings is not None:
            self.set_scalings(scalings)
        self._attach(optimizers)

    def attach(self, optimizer: Any) -> None:
        """Scale whenever this optimizer (or one of a list) steps, and no other; copied optimizers lose their hooks."""
        optimizers = unwrap_optimizers(optimizer)
        missing = names_without_optimizer(self._convolutions, optimizers)
        if missing:
            raise ValueError(f"The optimizer does not hold the weights of {', '.join(missing)}.")
        self._attach(optimizers)

    def detach(self) -> None:
        """Stop scaling, and live updates; the scalings and the position in the schedule are kept."""
        self._attachment.detach()
        if self._live is not None:
            self._live.detach()

    @property
    def apply(self) -> Apply:
        """Where the scalings are applied; ``"auto"`` only if that differs between optimizers, or while detached."""
        return self._attachment.apply

    @property
    def live(self) -> Live | None:
        """The schedule of live updates; None if there are none."""
        return None if self._live is None else self._live.schedule

    def due(self, epoch: int) -> bool:
        """Return whether the scalings should be updated before this epoch; never with live updates.

        That is before epoch `warmup`, and then before every epoch that is a multiple of `every`. Epochs count from 0:
        with ``warmup=1, every=5``, updates come before epochs 1, 5, 10, 15, …
        """
        if self.measure is None or self._live is not None or epoch < self.warmup:
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
        self._check_agreement()
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
                memory=self.memory,
            )
        outcome = outcome_of(found, self.k)
        self._report_functional(functional.found)
        self._reports.measured(outcome, list(self._convolutions))
        self._newcomers.report(self._attachment.optimizers)
        self._replace(outcome)
        return self.scalings

    @property
    def scalings(self) -> dict[str, Tensor]:
        """A copy of the current G of every convolution, by qualified name."""
        return self._filters.scalings()

    @property
    def dependence(self) -> dict[str, Tensor]:
        """A copy of the last measured S of every convolution, by qualified name.

        S is averaged over the channels that carry information. A convolution is missing before its first update, and
        if none of its channels carried information in the last one.
        """
        return {name: S.clone() for name, S in self._dependence.items()}

    def set_scalings(self, scalings: Mapping[str, Tensor] | Tensor) -> None:
        """Replace scalings.

        Args:
            scalings: G by qualified name, or one G for every convolution of its kernel size.
        """
        chosen = self._filters.assign(scalings, self.skipped)
        self._filters.check(chosen)
        self._filters.copy_(chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training run needs: scalings, the last dependence, and the number of updates.

        With live updates, that includes the position in their schedule, and what an update under way has gathered.
        """
        state = {"scalings": self.scalings, "dependence": self.dependence, "num_updates": self.num_updates}
        return state if self._live is None else {**state, "live": self._live.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; an invalid one, or one of another architecture, raises `ValueError` and changes nothing.

        Live updates start their schedule anew if the state is that of a training run without them.
        """
        self._filters.check_state(state)
        if self._live is not None and "live" in state:
            self._live.load_state_dict(state["live"])
        self._filters.copy_(state["scalings"])
        self._dependence = {name: S.clone() for name, S in state["dependence"].items()}
        self.num_updates = int(state["num_updates"])

    def __repr__(self) -> str:
        kind = kind_of(self.measure)
        schedule = "static" if kind is None else str(self._live or f"warmup={self.warmup}, every={self.every}")
        return (
            f"SpatialGradientScaling({len(self._convolutions)} convolutions, {len(self.skipped)} skipped, "
            f"dependence={kind!r}, k={self.k:g}, apply={self._attachment.place}, {schedule}, "
            f"updates={self.num_updates}, attached to {self._attachment})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attachment": (self._attachment.requested, self._attachment.optimizers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        requested, optimizers = state["_attachment"]
        self.__dict__.update(state)
        self._attachment = Attachment(requested, self._convolutions, self._filters, self._reports)
        # A copied optimizer has lost its hooks.
        if optimizers:
            self._attach(optimizers)

    def __enter__(self) -> SpatialGradientScaling:
        return self

    def __exit__(self, *exception: object) -> None:
        self.detach()

    def _attach(self, optimizers: list[Optimizer]) -> None:
        start = None if self._live is None else self._live.attach
        if self.measure is None:
            # Without updates, only a step can notice them.
            start = partial(self._newcomers.watch, optimizers)
        self._attachment.attach(optimizers, start)

    def _check_agreement(self, **further: Any) -> None:
        """Raise `ValueError` on all processes unless all of them measure the same layers in the same way."""
        shared = shared_settings(self._convolutions, self.measure, self.bins, self.drop_near, self.k, self.memory)
        check_agreement(shared | further, next(self._model.parameters()).device, self.process_group)

    def _start_live(self, names: Sequence[str]) -> Measurement:
        convolutions = {name: self._convolutions[name] for name in names}
        make = estimator_factory(self.measure, bins=self.bins, drop_near=self.drop_near)  # type: ignore[arg-type]
        return Measurement(convolutions, make, group=self.process_group, memory=self.memory)

    def _finish_live(self, names: Sequence[str], measurement: Measurement) -> None:
        outcome = outcome_of(measurement.dependence(), self.k)
        self._replace(outcome)
        self._reports.layers(
            sorted(measurement.problems), "had NaN or infinite inputs in a live update and keep their scalings"
        )
        self._reports.measured(outcome, [name for name in names if name not in measurement.problems])
        self._newcomers.report(self._attachment.optimizers)

    def _replace(self, outcome: Outcome) -> None:
        self._filters.copy_(outcome.scalings)
        known = {name: S for name, S in self._dependence.items() if name not in outcome.idle}
        self._dependence = known | outcome.dependence
        self.num_updates += 1

    def _watch_functional(self) -> Callable[[], None]:
        module = unwrap_model(self._model)
        return module.register_forward_hook(FunctionalConvolutionsHook(module, self._report_functional)).remove

    def _report_functional(self, names: set[str]) -> None:
        self.skipped |= dict.fromkeys(sorted(names), FUNCTIONAL)
        what = "are parameters that the model convolves with by itself; only convolution modules (nn.Conv2d) are scaled"
        self._reports.layers(sorted(names), what, stacklevel=4)
