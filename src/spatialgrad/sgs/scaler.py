"""SpatialGradientScaling: holds one G per convolution and multiplies by it whenever the optimizer steps.

a step     optimizer.step() ─▶ StepHook.before_step ─▶ ScaledLayer.buffer ─▶ torch._foreach_mul_
                               grad ⊙ G, or keep W     G, shaped as W

an update  StepHook.after_step ─▶ LiveUpdate.after_step            (or sgs.update ─▶ measure_batches)
                                  │  forward pass ─▶ Observer ─▶ Estimator.observe      maps, in two passes
                                  ▼
           Measurement.write_scalings ─▶ Estimator.dependence      ─▶ S
                                      ─▶ scaling_and_mean          ─▶ G
                                      ─▶ ScaledLayer.set_scaling   ─▶ buffer
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spatialgrad.plot import plot_scalings
from spatialgrad.sgs.apply_mode import Apply
from spatialgrad.sgs.layers import ScaledLayers
from spatialgrad.sgs.live import LiveUpdate
from spatialgrad.sgs.measure import Measurement, check_processes, measure_batches
from spatialgrad.sgs.no_effect import Progress
from spatialgrad.sgs.settings import EVERY, WARMUP, Live, Measure, Settings
from spatialgrad.sgs.show import html_table, kernel_matrix, summary, text_table
from spatialgrad.sgs.step_hook import StepHook, other_hooks
from spatialgrad.utils.loaders import Forward
from spatialgrad.utils.modules import Predicate, for_one_process, unwrap_model
from spatialgrad.utils.optimizers import unwrap_optimizers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SpatialGradientScaling:
    """Scales the gradient of every k×k convolution, position by position, whenever the optimizer steps.

    Args:
        model: Any module; its convolutions are detected automatically.
        optimizer: The optimizer that holds the model's parameters, or a wrapper around it; a list if there are several.
        k: Larger k flattens G; k = 1 uses S as it is. See `scaling_from_dependence`.
        measure: How S is measured: ``"mutual-information"``, ``"autocorrelation"``, a function
            ``f(maps, kernel_size, *, padding, dilation, padding_mode) -> S``, or None for static scalings.
        live: Update the scalings from the training's own forward passes: True, or a `Live` with the schedule in steps.
            By default they change only when `update` is called.
        warmup: Number of epochs before the first `update`; see `due`.
        every: Number of epochs between two calls of `update`; see `due`.
        include: ``(name, module) -> bool``: only these convolutions take part.
        exclude: ``(name, module) -> bool``: these do not.
        apply: ``"gradient"`` multiplies the gradient before the optimizer uses it, as the paper does except for
            Adagrad*; ``"update"`` multiplies the change that the optimizer made; ``"auto"`` chooses ``"gradient"``
            for optimizers that are linear in the gradient and ``"update"`` for all others. Weight decay is never
            scaled, unless an adaptive optimizer such as Adam adds it to the gradient and its update is scaled.
        scalings: Initial scalings: by qualified name, or one for every convolution of its kernel size. All others
            start as ones, which change nothing.
        bins: Histogram bins of the mutual information: ``"sturges"`` or a number.
        drop_near: Use the paper's ImageNet variant of the mutual information.
        max_channels: Measure at most about this many channels of each layer, evenly spread; by default all.
        replace: Detach another `SpatialGradientScaling` that already scales these weights, such as that of a notebook
            cell that is run again.
        process_group: The processes that train together; by default all of them.

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
        measure: Measure = "mutual-information",
        live: Live | bool = False,
        warmup: int = WARMUP,
        every: int = EVERY,
        include: Predicate | None = None,
        exclude: Predicate | None = None,
        apply: Apply = "auto",
        scalings: Mapping[str, Tensor] | Tensor | None = None,
        bins: int | str = "sturges",
        drop_near: bool = False,
        max_channels: int | None = None,
        replace: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._settings = Settings(
            k=k,
            measure=measure,
            live=live,
            warmup=warmup,
            every=every,
            apply=apply,
            bins=bins,
            drop_near=drop_near,
            max_channels=max_channels,
            process_group=process_group,
        )
        self.live, self.warmup, self.every = self._settings.schedule, warmup, every
        if self.live is not None and isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
            raise ValueError(
                "live=True cannot observe DataParallel, which trains on copies of the model. Use "
                "DistributedDataParallel, or call sgs.update(loader) between epochs."
            )
        self._model = for_one_process(model)
        self._apply, self._layers = apply, ScaledLayers(model, apply, include, exclude)
        advice = f"call sgs.update(loader) if sgs.due(epoch), first before epoch {warmup} (from 0), or pass live=True"
        if self.live is not None:
            advice = (
                f"the first live update begins after step {self.live.at[0]}; set live=Live(at=...) for earlier ones"
            )
        self._progress = Progress(scheduled=self.live is not None, advice=advice)
        self._hooks: list[StepHook] = []
        # Where the live updates of detached optimizers are.
        self._kept: list[dict[str, Any]] = []
        self.attach(optimizer, replace=replace)
        if scalings is not None:
            self.set_scalings(scalings)

    # Settings and state

    @property
    def k(self) -> float:
        """Larger k flattens G."""
        return self._settings.k

    @property
    def measure(self) -> Measure:
        """How S is measured."""
        return self._settings.measure

    @property
    def num_updates(self) -> int:
        """Number of updates so far."""
        return self._progress.updates

    @property
    def skipped(self) -> dict[str, str]:
        """The reason for every convolution that takes no part, by qualified name."""
        return dict(self._layers.skipped)

    @property
    def apply(self) -> Apply:
        """Where the scalings are applied; ``"auto"`` only if that differs between layers, or while detached."""
        found = {layer.mode.apply for layer in self._layers.values()} if self._hooks else set()
        return found.pop() if len(found) == 1 else self._apply

    @property
    def updating(self) -> bool:
        """Whether a live update has gathered something; a state saved now would begin that update again."""
        return any(hook.live is not None and hook.live.updating for hook in self._hooks)

    @property
    def scalings(self) -> dict[str, Tensor]:
        """A copy of the current G of every convolution, by qualified name."""
        return {name: layer.scaling.clone() for name, layer in self._layers.items()}

    @property
    def dependence(self) -> dict[str, Tensor]:
        """A copy of the last measured S of every convolution, by qualified name.

        S is averaged over the channels that carry information. A convolution is missing before its first update.
        """
        return {name: layer.dependence.clone() for name, layer in self._layers.items() if layer.dependence is not None}

    # Attaching

    def attach(self, optimizer: Any, *, replace: bool = False) -> None:
        """Scale whenever this optimizer (or one of a list) steps, and no other; arguments as in the constructor."""
        optimizers = unwrap_optimizers(optimizer)
        before, old = self._layers.optimizers, set(self._layers)
        self._layers.select(optimizers)
        others = other_hooks(optimizers, self._hooks, [layer.modules[0].weight for layer in self._layers.values()])
        if others and not replace:
            if before:
                self._layers.select(before)
            raise ValueError(
                "Another SpatialGradientScaling already scales these weights when this optimizer steps; both together "
                "would scale twice. Call sgs.detach() on the other one first, or pass replace=True."
            )
        for other in others:
            other.remove()
        lost = sorted(old & set(self._layers.skipped))
        self._layers.warn_once(lost, "are not in the optimizer and are no longer scaled")
        self.detach(warn=False)
        self._progress.watch()
        module = unwrap_model(self._model)
        for optimizer in optimizers:
            if self._layers.of(optimizer):
                live = None
                if self.live is not None:
                    live = LiveUpdate(self.live, module, optimizer, self._layers, self._settings)
                self._hooks.append(StepHook(optimizer, self._layers, self._settings, live, self._progress))
        self._restart(self._kept)

    def detach(self, *, warn: bool = True) -> None:
        """Stop scaling, and live updates; the scalings and the position in the schedule are kept.

        Args:
            warn: Whether to warn, now or at the end of the process, if no scaling was ever measured.
        """
        if not warn:
            self._progress.stop_watching()
        elif self._hooks:
            self._progress.warn_if_unused()
        self._kept = self._live_state()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _restart(self, states: list[dict[str, Any]]) -> None:
        """Continue live updates where they were, and compare the processes before the next step."""
        self._kept = states
        for hook in self._hooks:
            hook.agreed = False
        for hook, state in zip(self._hooks, states if len(states) == len(self._hooks) else [], strict=False):
            if hook.live is not None:
                hook.live.load_state_dict(state)

    def _live_state(self) -> list[dict[str, Any]]:
        states = [hook.live.state_dict() for hook in self._hooks if hook.live is not None]
        return states or self._kept

    # Updating

    def due(self, epoch: int) -> bool:
        """Return whether the scalings should be updated before this epoch; never with live updates.

        That is before epoch `warmup`, and then before every epoch that is a multiple of `every`. Epochs count from 0:
        with ``warmup=1, every=5``, updates come before epochs 1, 5, 10, 15, …
        """
        self._progress.scheduled = True
        if self.measure is None or self.live is not None:
            return False
        return epoch == self.warmup or (epoch > self.warmup and epoch % self.every == 0)

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
        if self.measure is None:
            raise RuntimeError("These scalings are static (measure=None); use set_scalings to change them.")
        check_processes("sgs.update", self._layers, self._settings)
        self._layers.select()
        measurement = Measurement(self._layers.values(), self._settings)
        measured = measure_batches(self._model, measurement, data, batches, forward=forward, seed=seed)
        self._progress.updates += measurement.write_scalings(self._layers)
        if batches is not None and 0 < measured < batches:
            warnings.warn(f"The loader has only {measured} of the requested {batches} batches.", stacklevel=2)
        return self.scalings

    def set_scalings(self, scalings: Mapping[str, Tensor] | Tensor) -> None:
        """Replace scalings.

        Args:
            scalings: G by qualified name, or one G for every convolution of its kernel size. A G with the shape of the
                whole weight has a factor of its own for every element.
        """
        for name, scaling in self._layers.assign(scalings).items():
            self._layers[name].set_scaling(scaling)
        self._progress.given = True
        for hook in self._hooks:
            hook.agreed = False

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training run needs: scalings, the last dependence, and the number of updates.

        With live updates, that includes the number of steps. What an update under way has gathered is not saved: a
        resumed training run begins that update again.
        """
        state = {"scalings": self.scalings, "dependence": self.dependence, "num_updates": self.num_updates}
        return state if self.live is None else {**state, "live": self._live_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; an invalid one, or one of another architecture, raises `ValueError` and changes nothing.

        Live updates start their schedule anew if the state is that of a training run without them.
        """
        try:
            scalings = dict(state["scalings"])
            dependence = {name: torch.as_tensor(S) for name, S in dict(state["dependence"]).items()}
            live = [
                {"step": int(saved["step"]), "updating": bool(saved["updating"])} for saved in state.get("live", [])
            ]
            updates = int(state["num_updates"])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Not a state_dict of SpatialGradientScaling: {error!r}.") from error
        layers = self._layers
        missing = sorted(set(layers) - set(scalings))
        unexpected = sorted((set(scalings) | set(dependence)) - set(layers) - set(layers.skipped))
        if missing or unexpected:
            raise ValueError(
                "The state_dict belongs to another architecture: "
                f"missing {', '.join(missing) or 'nothing'}, unexpected {', '.join(unexpected) or 'nothing'}."
            )
        if self.live is not None and self._hooks and len(live) not in (0, len(self._hooks)):
            raise ValueError(
                f"The state_dict has live updates for {len(live)} optimizers, but {len(self._hooks)} are attached."
            )
        layers.assign({name: scalings[name] for name in layers})
        layers.later = {name: G for name, G in scalings.items() if name not in layers}
        for name, layer in layers.items():
            S = dependence.get(name)
            layer.set_scaling(scalings[name])
            layer.dependence = None if S is None else S.to(layer.scaling.device, copy=True)
            layer.num_updates = 0 if S is None else updates
        self._progress.updates = updates
        self._restart(live)

    # Looking

    def summary(self) -> dict[str, float]:
        """Return numbers for a tracker: how many updates there were, and the share of every centre in per cent.

        Example:
            wandb.log(sgs.summary())
        """
        return summary(self._layers.values(), self.num_updates)

    def plot(self) -> Figure:
        """Return a figure of every G; see `plot_scalings`."""
        return plot_scalings({name: kernel_matrix(layer) for name, layer in self._layers.items()})

    def __str__(self) -> str:
        return text_table(repr(self), self._layers.values(), self._next_updates())

    def _repr_html_(self) -> str:
        return html_table(repr(self), self._layers.values(), self._next_updates())

    def _next_updates(self) -> dict[str, str]:
        return {layer.name: hook.next_update for hook in self._hooks for layer in self._layers.of(hook.optimizer)}

    # Python

    def __repr__(self) -> str:
        measured = self._settings.measure_name
        schedule = "static" if measured is None else f"warmup={self.warmup}, every={self.every}"
        if self.live is not None:
            steps = [state["step"] for state in self._live_state()]
            when = dict.fromkeys(hook.next_update for hook in self._hooks) or {"detached": None}
            schedule = f"live (step {', '.join(map(str, steps))}, next update: {', '.join(when)})"
        assumed = " (assumed)" if any(layer.mode.assumed for layer in self._layers.values()) else ""
        attached = " and ".join(type(hook.optimizer).__name__ for hook in self._hooks) or "nothing (detached)"
        return (
            f"SpatialGradientScaling({len(self._layers)} convolutions, {len(self.skipped)} skipped, "
            f"measure={measured!r}, k={self.k:g}, apply={self.apply!r}{assumed}, {schedule}, "
            f"updates={self.num_updates}, attached to {attached})"
        )

    def __getstate__(self) -> dict[str, Any]:
        optimizers = [hook.optimizer for hook in self._hooks]
        return {**self.__dict__, "_hooks": optimizers, "_kept": self._live_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hooks = []
        # A copied optimizer has lost its hooks.
        if state["_hooks"]:
            self.attach(state["_hooks"])

    def __enter__(self) -> SpatialGradientScaling:
        return self

    def __exit__(self, exception: object, *details: object) -> None:
        self.detach(warn=exception is None)
