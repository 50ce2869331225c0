"""Freed memory is kept for the next tensors, and returned in the end. In processes of their own: it is theirs."""

import os
import subprocess
import sys

import pytest

from spatialgrad.train.freed_memory import _glibc

pytestmark = pytest.mark.skipif(_glibc() is None, reason="needs Linux with glibc")

FAULTS = """
import resource, sys
from contextlib import nullcontext
import torch
from spatialgrad.train.freed_memory import keeping_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def step():
    tensors = [torch.ones(n << 20) for n in (1, 2, 20)]  # 4, 8 and 80 MB

before = resident()
with keeping_freed_memory() if sys.argv[1] == "keep" else nullcontext(False) as kept:
    for _ in range(30):  # until it has got what it needs
        step()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start
    held = resident() - before
print(int(kept), faults, held, resident() - before)
"""


def measured(how, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, how]
    output = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True).stdout
    return map(int, output.split())


def test_steps_get_their_memory_back_without_the_system():
    _, usual_faults, usually_held, _ = measured("usual")
    kept, faults, held, left = measured("keep")
    assert kept
    assert faults < usual_faults / 5 or usual_faults == 0  # not every system counts them
    assert usually_held < 70_000_000
    assert held > 80_000_000
    assert left < 70_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=100000"}]
)
def test_settings_of_the_environment_stay(environment):
    kept, _, held, _ = measured("keep", **environment)
    assert not kept
    assert held < 70_000_000
