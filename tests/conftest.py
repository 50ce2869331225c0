"""What every test shares: one thread per process and seeds that do not leak."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from support.common import default_signals, define_torchvision_operators
from support.ranks import Ranks

if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    # The compiler's cache does not tell the instruction sets apart that it compiled for.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor-{capability}"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _signals():
    default_signals()


@pytest.fixture(scope="session")
def device(request):
    """The device that tests run on: cpu, or as in ``pytest --device cuda``."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real data sets, or a skip that says how to get it."""
    folder = os.environ.get("SPATIALGRAD_DATA")
    if not folder:
        pytest.skip("set SPATIALGRAD_DATA to the folder with the real data sets")
    return folder


@pytest.fixture(scope="session")
def ranks():
    """Two processes for all tests that need them; these carry the mark ``xdist_group("ranks")``."""
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def four_ranks():
    """Four processes, for two groups of two; these tests are marked ``xdist_group("ranks")``, too."""
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device of the tests that take one, such as cuda or mps")


def pytest_configure(config):
    _avoid_broken_amx()
    # Two xdist workers on two cores: more threads per worker would only fight each other.
    torch.set_num_threads(1)
    # Lightning, Transformers and timm import torchvision if it is there.
    define_torchvision_operators()


def _avoid_broken_amx():
    """On virtual machines that announce AMX but do not execute it, bfloat16 would end the process with SIGILL."""
    cpu = Path("/proc/cpuinfo")
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not cpu.exists() or "amx_bf16" not in cpu.read_text():
        return
    probe = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", probe]).returncode < 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
