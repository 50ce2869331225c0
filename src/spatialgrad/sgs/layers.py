"""Layers: which convolutions are scaled, and the G of each."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from spatialgrad.sgs.apply_mode import Apply, ApplyMode, resolve_apply
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.utils.distributed import local_part
from spatialgrad.utils.modules import Convolution, Predicate, named_convolutions, plain_name, unwrap_model
from spatialgrad.utils.optimizers import parameter_ids

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SCRIPTED = {"Conv1d", "Conv2d", "Conv3d"}
# A larger side belongs to something else than a kernel, such as an embedding of positions.
_LARGEST_KERNEL = 31
FROZEN = "frozen: its weight does not require a gradient"
OUTSIDE = "not in a convolution module, such as nn.Conv2d: if the model passes it to F.conv2d, it is not scaled"
EXPORTED = "in an exported graph, which has no convolution modules: train the model that was exported instead"
ELSEWHERE = "its weight is not in this optimizer"


class NoEffectWarning(UserWarning):
    """Something was set up that has no effect on training."""


class ScaledLayer:
    """A convolution (or several that share one weight), its scaling G, and a buffer of G that multiplies its gradient.

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
        self._buffer = torch.empty(0)
        self._layout: object = None  # of the weight that the buffer was made for

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
        """Replace G. A buffer in use is written in place, so that captured graphs see the new values."""
        if scaling.shape != self.scaling.shape:
            self.scaling, self._layout = scaling.detach().to(self.scaling, copy=True), None
            return
        self.scaling.copy_(scaling)
        if self._layout is not None:
            self._buffer.copy_(self._spread(self._buffer.device))

    def buffer(self, weight: Tensor) -> Tensor:
        """Return G repeated to the shape and memory layout of this process's part of the weight, or of one filter.

        Multiplying by whole filters is several times faster than broadcasting G over 3×3 kernels. On an accelerator,
        a fused multiplication needs the shape of the whole weight.
        """
        layout = layout_of(weight)
        if layout != self._layout:
            self.scaling = self.scaling.to(weight.device)
            whole = weight.device.type != "cpu" or self.scaling.dim() == weight.dim()
            like = weight.detach() if whole or len(weight) == 0 else weight.detach()[0]
            self._buffer = torch.empty_like(like, dtype=self.scaling.dtype)
            self._buffer.copy_(self._spread(weight.device))
            self._layout = layout
        return self._buffer

    def _spread(self, device: torch.device) -> Tensor:
        """Return G, of a weight's own shape cut to this process's part."""
        weight, scaling = self.modules[0].weight, self.scaling.to(device)
        if scaling.dim() < weight.dim() or local_part(weight) is weight:
            return scaling
        from torch.distributed.tensor import distribute_tensor

        return local_part(distribute_tensor(scaling, weight.device_mesh, weight.placements))  # type: ignore[attr-defined]


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

        Raises:
            ValueError: If no convolution is left, or if several optimizers hold the same one.
        """
        optimizers, attaching = optimizers or self.optimizers, optimizers is not None
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
        # From here on, nothing raises: a selection changes everything or nothing.
        skipped |= {name: ELSEWHERE for name in chosen if name not in owners}
        new = []
        self.optimizers, self.skipped, self._of = optimizers, skipped, {id(each): [] for each in optimizers}
        for name, (optimizer, group) in owners.items():
            if name not in self or self[name].kernel_size != tuple(chosen[name][0].kernel_size):
                self[name] = ScaledLayer(name, chosen[name])
                self[name].set_scaling(self.later.pop(name, self[name].scaling))
                new.append(name)
            self[name].modules = chosen[name]
            self[name].mode = modes.get(id(group), self[name].mode)
            self._of[id(optimizer)].append(self[name])
        self._waiting = [convolutions[name] for name, why in skipped.items() if why in (FROZEN, ELSEWHERE)]
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
        return any(not trainable.isdisjoint(parameter_ids(optimizer)) for optimizer in self.optimizers)

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


def select_convolutions(
    model: nn.Module, include: Predicate | None = None, exclude: Predicate | None = None
) -> tuple[dict[str, list[Convolution]], dict[str, str]]:
    """Choose the convolutions whose gradients can be scaled; arguments as those of `SpatialGradientScaling`.

    Returns:
        The chosen convolutions by qualified name (several where modules share one weight), and the reason for each
        convolution, or other parameter with the shape of a kernel, that was left out.
    """
    for what, predicate in (("include", include), ("exclude", exclude)):
        if predicate is not None and not callable(predicate):
            raise TypeError(f"Invalid {what}: {predicate!r}; it must be a function (name, module) -> bool.")
    chosen: dict[str, list[Convolution]] = {}
    skipped: dict[str, str] = {}
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        name = plain_name(name)
        if isinstance(module, _TRANSPOSED):
            skipped[name] = "transposed convolution"
        if isinstance(module, torch.jit.ScriptModule) and module.original_name in _SCRIPTED:
            skipped[name] = "scripted: TorchScript hides it; create the scaling with the model that was scripted"
        if not isinstance(module, Convolution):
            continue
        reason = reason_to_skip(name, module, include, exclude)
        if reason:
            skipped[name] = reason
        elif id(module.weight) in owner:
            first = owner[id(module.weight)]
            if tuple(module.kernel_size) == tuple(chosen[first][0].kernel_size):
                chosen[first].append(module)
            skipped[name] = f"shares its weight with {first!r}, where it is pooled"
        else:
            owner[id(module.weight)] = name
            chosen[name] = [module]
    return chosen, skipped | _kernels_outside_modules(model)


def reason_to_skip(
    name: str, module: Convolution, include: Predicate | None = None, exclude: Predicate | None = None
) -> str | None:
    """Return why a convolution cannot be scaled, or should not; None if it can."""
    if all(side == 1 for side in module.kernel_size):
        return "1×1 kernel, which has no spatial positions to scale"
    if include is not None and not include(name, module):
        return "not included"
    if exclude is not None and exclude(name, module):
        return "excluded"
    if parametrize.is_parametrized(module, "weight") or "weight" not in module._parameters:
        return "parametrized weight: the optimizer does not update the kernel itself"
    weight = module.weight
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "lazy: its weight is not initialized; run the model once first"
    if weight.is_complex():
        return "complex: spatial dependence is only defined for real values"
    if not weight.requires_grad:
        return FROZEN
    if weight.dim() != 2 + len(module.kernel_size):
        return f"weight flattened to shape {tuple(weight.shape)}; shard with fully_shard (FSDP2) instead"
    return None


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


def layout_of(tensor: Tensor) -> tuple[object, ...]:
    """Return what another tensor must share to be combined with this one element by element."""
    return tensor.shape, tensor.stride(), tensor.device


def check_scaling(
    name: str, scaling: Tensor, kernel_size: tuple[int, ...], weight_shape: torch.Size | None = None
) -> None:
    """Raise `ValueError` unless `scaling` can multiply the kernel of the convolution `name`."""
    if not isinstance(scaling, Tensor) or tuple(scaling.shape) not in (kernel_size, tuple(weight_shape or ())):
        got = f"shape {tuple(scaling.shape)}" if isinstance(scaling, Tensor) else f"type {type(scaling).__name__}"
        raise ValueError(f"The scaling of {name!r} has {got}; its kernel needs shape {kernel_size}.")
    if not bool(scaling.isfinite().all()) or bool((scaling < 0).any()):
        raise ValueError(f"The scaling of {name!r} must be finite and non-negative, got\n{scaling}")


def _kernels_outside_modules(model: nn.Module) -> dict[str, str]:
    """Return trained parameters with the shape of a kernel that belong to no convolution module, with the reason."""
    layers = (Convolution, *_TRANSPOSED)
    inside = {id(p) for module in model.modules() if isinstance(module, layers) for p in module.parameters()}
    graphs = [module for module in model.modules() if isinstance(module, fx.GraphModule)]
    exported = {id(parameter) for graph in graphs for parameter in graph.parameters()}
    return {
        plain_name(name): EXPORTED if id(p) in exported else OUTSIDE
        for name, p in model.named_parameters()
        if id(p) not in inside and not nn.parameter.is_lazy(p) and p.requires_grad and _is_kernel(p.shape)
    }


def _is_kernel(shape: torch.Size) -> bool:
    return 3 <= len(shape) <= 5 and 1 < max(shape[2:]) <= _LARGEST_KERNEL
