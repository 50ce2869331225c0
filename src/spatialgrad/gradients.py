"""The primitive: multiply the gradients that are there now, in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spatialgrad.capture import named_convolutions


@torch.no_grad()
def scale_gradients_(model: nn.Module, scalings: Mapping[str, Tensor]) -> None:
    """Multiply the gradients of convolution kernels position by position, in place.

    Used like `torch.nn.utils.clip_grad_norm_`: after ``backward()``, before ``optimizer.step()``. Convolutions
    without a gradient are passed over.

    Args:
        model: Any module; wrappers such as DistributedDataParallel or a compiled module do not matter.
        scalings: G of shape kernel_size by the qualified name of the convolution.
    """
    convolutions = named_convolutions(model)
    for name, scaling in scalings.items():
        conv = convolutions.get(name)
        if conv is None:
            raise KeyError(f"The model has no convolution {name!r}; it has {', '.join(convolutions) or 'none'}.")
        check_scaling(name, scaling, tuple(conv.kernel_size))
        if conv.weight.grad is not None:
            multiply_(conv.weight.grad, scaling)


def multiply_(tensor: Tensor, scaling: Tensor) -> None:
    """Multiply a kernel-shaped tensor, or this process's shard of it, by a scaling in place."""
    local_part(tensor).mul_(scaling.to(tensor.device))


def local_part(tensor: Tensor) -> Tensor:
    """This process's shard of a distributed tensor, sharing its memory; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check_scaling(name: str, scaling: Tensor, kernel_size: tuple[int, ...]) -> None:
    """Raise unless `scaling` can multiply the kernel of the convolution `name`."""
    if not isinstance(scaling, Tensor) or tuple(scaling.shape) != kernel_size:
        got = f"shape {tuple(scaling.shape)}" if isinstance(scaling, Tensor) else type(scaling).__name__
        raise ValueError(f"The scaling of {name!r} has {got}; its kernel needs shape {kernel_size}.")
    if not bool(scaling.isfinite().all()) or bool((scaling < 0).any()):
        raise ValueError(f"The scaling of {name!r} must be finite and not negative, got\n{scaling}")
