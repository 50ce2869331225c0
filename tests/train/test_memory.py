"""Freed memory is kept for the next tensors, and returned in the end; networks that are unsafe in channels-last."""

import ctypes
import io
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from torch import nn

from spatialgrad.models import create_model
from spatialgrad.train import train
from spatialgrad.train.memory import _glibc, unsafe_in_channels_last
from support.training import tiny

TUNING = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
needs_glibc = pytest.mark.skipif(_glibc() is None, reason="needs Linux with glibc")


@pytest.mark.parametrize(
    ("conv", "unsafe"),
    [
        (nn.Conv2d(4, 8, 1, stride=2), True),
        (nn.Conv2d(15, 8, 1, stride=(1, 2)), True),
        (nn.Conv2d(32, 8, 1, stride=2, groups=4), True),
        (nn.Conv2d(16, 8, 1, stride=2), False),
        (nn.Conv2d(4, 8, 1), False),
        (nn.Conv2d(4, 8, 3, stride=2, padding=1), False),
        (nn.Conv2d(4, 8, (1, 3), stride=2), False),
        (nn.Linear(4, 8), False),
    ],
)
def test_strided_points_over_few_channels(conv, unsafe):
    assert unsafe_in_channels_last(nn.Sequential(nn.ReLU(), conv)) == ("1" if unsafe else None)


@pytest.mark.parametrize(("width", "found"), [(1 / 16, "layer2.0.downsample.0"), (1 / 4, None)])
def test_narrow_networks(width, found):
    assert unsafe_in_channels_last(create_model("resnet18", width=width)) == found


# In a process of its own: the memory is its own.
FAULTS = """
import resource
from contextlib import nullcontext
import torch
from spatialgrad.train.memory import keeping_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def step():
    tensors = [torch.ones(n << 20) for n in (1, 2, 20)]  # 4, 8 and 80 MB

for how in (nullcontext(False), keeping_freed_memory()):
    before = resident()
    with how as kept:
        for _ in range(10):  # until it has got what it needs
            step()
        start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            step()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start
        held = resident() - before
    print(int(kept), faults, held, resident() - before)
"""


def measured(**environment):
    """Whether memory is kept, the page faults, what is held and what is left: usually, and when it is to be kept."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS]
    output = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True).stdout
    return [[int(word) for word in line.split()] for line in output.splitlines()]


@needs_glibc
def test_steps_get_their_memory_back_without_the_system():
    (_, usual_faults, usually_held, _), (kept, faults, held, left) = measured()
    assert kept
    assert faults < usual_faults / 5 or usual_faults == 0  # not every system counts them
    assert usually_held < 70_000_000
    assert held > 80_000_000
    assert left < 70_000_000


@pytest.mark.slow
@needs_glibc
@pytest.mark.parametrize(
    "environment", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=100000"}]
)
def test_settings_of_the_environment_stay(environment):
    kept, _, held, _ = measured(**environment)[1]
    assert not kept
    assert held < 70_000_000


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


@needs_glibc
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or newer")
def test_freed_memory_is_kept_during_training_and_not_after_it(tmp_path, monkeypatch):
    for name in TUNING:
        monkeypatch.delenv(name, raising=False)
    probe = Probe()
    train(tiny(tmp_path, epochs=1), console=Console(file=probe))
    assert probe.found
    assert not any(probe.found)
    # More than all that is free: what earlier tests have left behind cannot serve it.
    assert from_the_system(mallinfo().fordblks // 4 + LARGE)
