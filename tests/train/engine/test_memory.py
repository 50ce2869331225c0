"""A training on a CPU keeps freed memory while it runs, and not after it."""

import ctypes
import io

import pytest
import torch
from rich.console import Console

from spatialgrad.torch_utils.freed_memory import _glibc
from spatialgrad.train import train
from support.training import tiny

LARGE = 16 << 20
"""Elements: 64 MB, which glibc gets from the system each time, unless it is told otherwise."""


class Mallinfo(ctypes.Structure):
    """What `mallinfo2` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def mallinfo():
    function = ctypes.CDLL(None).mallinfo2
    function.restype = Mallinfo
    return function()


def from_the_system(size=LARGE):
    """Whether a large tensor is a block from the system of its own."""
    before = mallinfo().hblkhd
    tensor = torch.empty(size)
    return mallinfo().hblkhd - before >= tensor.nbytes


class Probe(io.StringIO):
    """Looks whenever the training prints something."""

    def __init__(self):
        super().__init__()
        self.found = []

    def write(self, text):
        self.found.append(from_the_system())
        return super().write(text)


@pytest.mark.skipif(
    _glibc() is None or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs Linux with glibc 2.33 or newer"
)
def test_freed_memory_is_kept_during_training(tmp_path, monkeypatch):
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_"):
        monkeypatch.delenv(name, raising=False)
    probe = Probe()
    train(tiny(tmp_path), console=Console(file=probe))
    assert probe.found
    assert not any(probe.found)
    # More than all that is free: what earlier tests have left behind cannot serve it.
    assert from_the_system(mallinfo().fordblks // 4 + LARGE)
