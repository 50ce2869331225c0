"""Memory of a training on a CPU: freed memory that the process keeps, and layouts that PyTorch cannot train in."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

NARROW = 16
"""Largest number of channels that oneDNN's 1×1 kernels process at a time, on any processor."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
NEVER, LARGEST = -1, 2**31 - 1
"""To return nothing at the end of the heap, and to take even the largest blocks from it: `mallopt` takes an int."""
ADAPTED_TRIM, ADAPTED_MMAP = 64 << 20, 32 << 20
"""Bytes; the largest values that glibc chooses by itself."""


@contextmanager
def keeping_freed_memory() -> Iterator[bool]:
    """Keep what is freed instead of returning it to the system, on Linux with glibc; yields whether it does.

    Otherwise, a training on a CPU returns the memory of every step and gets it back page by page, filled with zeros,
    which takes about a sixth of its time. At the end, what is free is returned. Where the environment already tunes
    glibc's allocator, its settings stay.
    """
    libc = None if _is_tuned() else _glibc()
    if libc is None:
        yield False
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
    libc.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield True
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, ADAPTED_MMAP)
        libc.mallopt(M_TRIM_THRESHOLD, ADAPTED_TRIM)
        libc.malloc_trim(0)


def _is_tuned() -> bool:
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
    return any(name in os.environ for name in names) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process; None if it is not glibc."""
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    functions = ("gnu_get_libc_version", "mallopt", "malloc_trim")
    return libc if all(hasattr(libc, name) for name in functions) else None


def unsafe_in_channels_last(model: nn.Module) -> str | None:
    """The name of a convolution that is not safe to train in the channels-last format on a CPU; None if all are.

    In the weight gradient of 1×1 kernels that stride over few channels, oneDNN writes beyond the end of a buffer
    (https://github.com/uxlfoundation/oneDNN/issues/6035): wrong values, a hang or a crash, depending on the processor
    and the number of threads.
    """
    return _strided_over_few_channels(model, (1, 1))


def unsafe_with_branches(plain: nn.Module) -> bool:
    """Whether that may happen once a method has given the 3×3 kernels of a network 1×1 branches."""
    return any(_strided_over_few_channels(plain, size) is not None for size in ((1, 1), (3, 3)))


def _strided_over_few_channels(model: nn.Module, kernel_size: tuple[int, int]) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == kernel_size and max(module.stride) > 1:
            if module.in_channels // module.groups < NARROW:
                return str(name)
    return None
