"""Layers: the convolutions that are scaled, and the G of each."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.apply_mode import Apply, ApplyMode, resolve_apply
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.no_effect import NoEffectWarning
from spatialgrad.sgs.selection import ELSEWHERE, FROZEN, select_convolutions
from spatialgrad.utils.distributed import local_part
from spatialgrad.utils.modules import Convolution, Predicate, named_convolutions, unwrap_model
from spatialgrad.utils.optimizers import parameter_ids


class ScaledLayer:
    """A convolution (or several that share one weight), its scaling G, and buffers of G that multiply its gradient.

    Attributes:
        scaling: G, of shape kernel_size or of the shape of the weight; all ones at first.
        dependence: The last measured S, averaged over channels; None before the first measurement.
        num_updates: How many times G was measured.
        mode: Where G is applied.
    """

    def __init__(self, name: str, modules: list[Convolution]) -> None:
        self.name, self.modules = name, modules
        self.kernel_size = tuple(modules[0].kernel_size)
        weight = modules[0].weight.detach()
        if tuple(local_part(weight).shape[2:]) != self.kernel_size:
            raise ValueError(f"The kernel of {name!r} is sharded along a spatial dimension, which cannot be scaled.")
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.scaling = torch.ones(self.kernel_size, dtype=dtype, device=weight.device)
        self.dependence: Tensor | None = None
        self.num_updates = 0
        self.mode = ApplyMode(apply="gradient")
        # Of G and of 1 − G, with the layout of the weight that each was made for.
        self._buffers: dict[bool, tuple[object, Tensor]] = {}

    @property
    def weight(self) -> Tensor | None:
        """The weight that an optimizer updates; None if the layer was parametrized or pruned meanwhile."""
        # Looked up each time: wrappers may replace parameters and move them.
        weight = self.modules[0]._parameters.get("weight")
        return weight if weight is not None and weight.is_leaf else None

    def check(self, scaling: Tensor) -> None:
        """Raise `ValueError` unless a scaling can multiply this layer's kernel."""
        check_scaling(self.name, scaling, self.kernel_size, self.modules[0].weight.shape)

    def set_scaling(self, scaling: Tensor) -> None:
        """Replace G. Buffers in use are written in place, so that captured graphs see the new values."""
        if scaling.shape != self.scaling.shape:
            self.scaling, self._buffers = scaling.detach().to(self.scaling, copy=True), {}
            return
        self.scaling.copy_(scaling)
        for complement, (_, buffer) in self._buffers.items():
            buffer.copy_(self._spread(buffer.device, complement))

    def buffer(self, weight: Tensor, *, complement: bool = False) -> Tensor:
        """Return G repeated to the shape and memory layout of this process's part of the weight, or of one filter.

        Multiplying by whole filters is several times faster than broadcasting G over 3×3 kernels. On an accelerator,
        a fused multiplication needs the shape of the whole weight.

        Args:
            weight: This process's part of the weight.
            complement: Return 1 − G, in the precision of the weight: the share of the old weight that stays if an
                update is scaled.
        """
        layout = layout_of(weight)
        made_for, buffer = self._buffers.get(complement, (None, weight))
        if layout != made_for:
            self.scaling = self.scaling.to(weight.device)
            whole = weight.device.type != "cpu" or self.scaling.dim() == weight.dim()
            like = weight.detach() if whole or len(weight) == 0 else weight.detach()[0]
            buffer = torch.empty_like(like, dtype=weight.dtype if complement else self.scaling.dtype)
            buffer.copy_(self._spread(weight.device, complement))
            self._buffers[complement] = layout, buffer
        return buffer

    def _spread(self, device: torch.device, complement: bool) -> Tensor:
        """Return G or 1 − G; of a weight's own shape, it is cut to this process's part."""
        weight, scaling = self.modules[0].weight, self.scaling.to(device)
        values = 1 - scaling if complement else scaling
        if values.dim() < weight.dim() or local_part(weight) is weight:
            return values
        from torch.distributed.tensor import distribute_tensor

        return local_part(distribute_tensor(values, weight.device_mesh, weight.placements))  # type: ignore[attr-defined]


class ScaledLayers(dict[str, ScaledLayer]):
    """The layers that are scaled by their qualified names, selected from a model and its optimizers.

    Arguments as those of `SpatialGradientScaling`.

    Attributes:
        skipped: The reason for every convolution that takes no part, by qualified name.
        later: Scalings of convolutions that cannot be trained yet.
        optimizers: Those that scale.
    """

    def __init__(
        self,
        model: nn.Module,
        apply: Apply = "auto",
        include: Predicate | None = None,
        exclude: Predicate | None = None,
    ) -> None:
        super().__init__()
        self._model, self._apply, self._predicates = unwrap_model(model), apply, (include, exclude)
        self.skipped: dict[str, str] = {}
        self.later: dict[str, Tensor] = {}
        self.optimizers: list[Optimizer] = []
        self._of: dict[int, list[ScaledLayer]] = {}
        self._waiting: list[Convolution] = []
        self._said: set[str] = set()

    def select(self, optimizers: list[Optimizer] | None = None) -> list[str]:
        """Adopt convolutions that these optimizers (by default the last ones) train, and return the names of new ones.

        A selection changes everything or, if it raises, nothing.

        Raises:
            ValueError: If no convolution is left, or if several optimizers hold the same one.
        """
        optimizers, attaching = optimizers or self.optimizers, optimizers is not None
        chosen, skipped, waiting = self._candidates()
        owners = _owners(optimizers, {name: modules[0].weight for name, modules in chosen.items()})
        if not owners and attaching:
            raise ValueError(
                "The optimizer holds none of the model's convolution weights. Build it from model.parameters(), after "
                "the model was moved, wrapped or sharded."
            )
        modes: dict[int, ApplyMode] = {}
        for name, (optimizer, group) in owners.items():
            if id(group) not in modes and (name not in self or attaching):
                modes[id(group)] = resolve_apply(self._apply, optimizer, chosen[name][0].weight)
        new = []
        elsewhere = [name for name in chosen if name not in owners]
        self.optimizers, self._of = optimizers, {id(each): [] for each in optimizers}
        self.skipped = skipped | dict.fromkeys(elsewhere, ELSEWHERE)
        self._waiting = waiting + [chosen[name][0] for name in elsewhere]
        for name, (optimizer, group) in owners.items():
            if name not in self or self[name].kernel_size != tuple(chosen[name][0].kernel_size):
                self[name] = ScaledLayer(name, chosen[name])
                self[name].set_scaling(self.later.pop(name, self[name].scaling))
                new.append(name)
            self[name].modules = chosen[name]
            self[name].mode = modes.get(id(group), self[name].mode)
            self._of[id(optimizer)].append(self[name])
        for message in {mode.no_effect for mode in modes.values()} - {"", *self._said}:
            self._said.add(message)
            warnings.warn(message, NoEffectWarning, stacklevel=4)
        return new

    def of(self, optimizer: Optimizer) -> list[ScaledLayer]:
        """Return the layers that an optimizer trains."""
        return self._of[id(optimizer)]

    def became_trainable(self) -> bool:
        """Return whether convolutions that were frozen, or in no optimizer, can be trained now."""
        weights = [conv._parameters.get("weight") for conv in self._waiting]
        trainable = {id(weight) for weight in weights if weight is not None and weight.requires_grad}
        return bool(trainable) and any(not trainable.isdisjoint(parameter_ids(each)) for each in self.optimizers)

    def assign(self, scalings: Mapping[str, Tensor] | Tensor) -> dict[str, Tensor]:
        """Return scalings by qualified name, given as such or as one for every convolution of its kernel size.

        Raises:
            KeyError: If a name is unknown.
            ValueError: If a scaling does not fit.
        """
        if isinstance(scalings, Tensor):
            shape = tuple(scalings.shape)
            scalings = {name: scalings for name, layer in self.items() if layer.kernel_size == shape}
            if not scalings:
                raise ValueError(f"No convolution has a kernel of shape {shape}.")
        unknown = sorted(set(scalings) - set(self))
        if unknown:
            reasons = [f"{name} ({self.skipped.get(name, 'no such convolution')})" for name in unknown]
            raise KeyError(f"Cannot scale {', '.join(reasons)}; choose from {', '.join(self)}.")
        for name, scaling in scalings.items():
            self[name].check(scaling)
        return dict(scalings)

    def identity(self) -> dict[str, object]:
        """Return what must be the same on all processes: the layers, and a digest of their scalings."""
        windows = {
            name: [(Window.of_convolution(conv), conv.in_channels) for conv in layer.modules]
            for name, layer in self.items()
        }
        digest = hashlib.sha256()
        for layer in self.values():
            digest.update(layer.scaling.detach().double().cpu().contiguous().numpy().tobytes())
        return {"convolutions": windows, "scalings": digest.hexdigest()}

    def warn_once(self, names: Iterable[str], what: str) -> None:
        """Warn that something is the matter with layers, unless that has been said about them."""
        new = [name for name in names if f"{name} {what}" not in self._said]
        self._said.update(f"{name} {what}" for name in new)
        if new:
            warnings.warn(f"Convolutions {', '.join(new)} {what}.", NoEffectWarning, stacklevel=2)

    def _candidates(self) -> tuple[dict[str, list[Convolution]], dict[str, str], list[Convolution]]:
        """Return the convolutions that can be scaled, why the others cannot be, and those of them that are frozen."""
        chosen, skipped = select_convolutions(self._model, *self._predicates)
        convolutions = named_convolutions(self._model)
        for name, layer in self.items():
            # Frozen only for a while, as a discriminator is while the generator learns.
            if skipped.get(name) == FROZEN and layer.modules[0] is convolutions[name]:
                chosen[name] = layer.modules
                del skipped[name]
        if not chosen and not self:
            reasons = Counter(skipped.values()).most_common()
            why = ", ".join(f"{count} × {reason}" for reason, count in reasons)
            raise ValueError(
                f"{type(self._model).__name__} has no convolution to scale: "
                f"{why or 'it has no convolution modules such as nn.Conv2d'}."
            )
        return chosen, skipped, [convolutions[name] for name, why in skipped.items() if why == FROZEN]


def check_scaling(
    name: str, scaling: Tensor, kernel_size: tuple[int, ...], weight_shape: torch.Size | None = None
) -> None:
    """Raise `ValueError` unless `scaling` can multiply the kernel of the convolution `name`."""
    if not isinstance(scaling, Tensor) or tuple(scaling.shape) not in (kernel_size, tuple(weight_shape or ())):
        got = f"shape {tuple(scaling.shape)}" if isinstance(scaling, Tensor) else f"type {type(scaling).__name__}"
        raise ValueError(f"The scaling of {name!r} has {got}; its kernel needs shape {kernel_size}.")
    if not bool(scaling.isfinite().all()) or bool((scaling < 0).any()):
        raise ValueError(f"The scaling of {name!r} must be finite and non-negative, got\n{scaling}")


def layout_of(tensor: Tensor) -> tuple[object, ...]:
    """Return what another tensor must share to be combined with this one element by element."""
    return tensor.shape, tensor.stride(), tensor.device, tensor.dtype


def _owners(optimizers: list[Optimizer], weights: dict[str, Tensor]) -> dict[str, tuple[Optimizer, dict[str, Any]]]:
    """Return the optimizer and the group that hold each weight, for those that are held."""
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    holding = [(set(map(id, group["params"])), (optimizer, group)) for optimizer, group in groups]
    owners = {}
    for name, weight in weights.items():
        found = [owner for ids, owner in holding if id(weight) in ids]
        if len(found) > 1:
            raise ValueError(f"The weight of {name!r} is in several of the optimizers: each would scale it.")
        if found:
            owners[name] = found[0]
    return owners
