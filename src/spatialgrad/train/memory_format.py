"""Networks that must not be trained in the channels-last format on a CPU."""

from __future__ import annotations

from torch import nn

NARROW = 16
"""Largest number of channels that oneDNN's 1×1 kernels process at a time, on any processor."""


def unsafe_in_channels_last(model: nn.Module) -> str | None:
    """The name of a convolution that is not safe to train in the channels-last format on a CPU; None if all are.

    In the weight gradient of 1×1 kernels that stride over few channels, oneDNN writes beyond the end of a buffer
    (https://github.com/uxlfoundation/oneDNN/issues/6035): wrong values, a hang or a crash, depending on the processor
    and the number of threads.
    """
    return next((name for name, module in model.named_modules() if _is_unsafe(module)), None)


def _is_unsafe(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d):
        return False
    strided_point = module.kernel_size == (1, 1) and max(module.stride) > 1
    return strided_point and module.in_channels // module.groups < NARROW
