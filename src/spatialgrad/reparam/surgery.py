"""Finding and replacing modules inside a model, by qualified name."""

from collections import Counter
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, UnsupportedLayerError

__all__ = [
    "batch_norms",
    "check_replaceable",
    "named_blocks",
    "nearest_batch_norm",
    "outer_modules",
    "replace_module_",
    "tied_parameters",
]


def named_blocks(model: nn.Module) -> Iterator[tuple[str, BranchedConv2d]]:
    """The reparameterized layers of a model with their qualified names; not those nested inside another."""
    for name, module in outer_modules(model):
        if isinstance(module, BranchedConv2d):
            yield name, module


def outer_modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Like `named_modules`, but without what is inside blocks."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules(prefix=prefix):
        if module not in inside:
            yield name, module
        if isinstance(module, BranchedConv2d):
            inside.update(module.modules())


def replace_module_(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts a module in another one's place, everywhere in the model where that one is registered."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new


def tied_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Parameters that several modules hold: replacing one of these would untie them."""
    holders = Counter(
        parameter for module in model.modules() for parameter in module._parameters.values() if parameter is not None
    )
    return {parameter for parameter, count in holders.items() if count > 1}


def check_replaceable(layer: str, conv: nn.Module, tied: set[nn.Parameter]) -> None:
    """Raises `UnsupportedLayerError` for what only looks like a plain convolution."""
    way_out = "Leave it out with include=."
    if type(conv) is not nn.Conv2d:
        raise UnsupportedLayerError(
            f"{layer!r} is a {type(conv).__name__}, and only plain torch.nn.Conv2d layers can be replaced. {way_out}"
        )
    if "weight" not in conv._parameters:
        raise UnsupportedLayerError(f"The weight of {layer!r} is computed, not a parameter. {way_out}")
    if hasattr(conv.weight, "to_local"):
        raise UnsupportedLayerError(f"{layer!r} is sharded. Convert the model first and shard it afterwards.")
    if conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks or conv._backward_pre_hooks:
        raise UnsupportedLayerError(
            f"{layer!r} has hooks that would be lost. Remove them before the conversion, or leave the layer out "
            "with include=."
        )
    if not tied.isdisjoint(conv.parameters()):
        raise UnsupportedLayerError(f"{layer!r} shares its parameters with another layer. {way_out}")


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """All BatchNorms inside a module."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


def nearest_batch_norm(model: nn.Module, layer: nn.Module) -> _BatchNorm | None:
    """The next BatchNorm after a layer in the order of registration, or else the last one before it.

    Good enough to copy settings from (kind, epsilon, parameter group); whether it really follows is another
    question, which `following_batch_norms` answers.
    """
    inside = set(layer.modules())
    before: _BatchNorm | None = None
    seen = False
    for module in model.modules():
        seen = seen or module is layer
        if isinstance(module, nn.BatchNorm2d | nn.SyncBatchNorm) and module not in inside:
            if seen:
                return module
            before = module
    return before
