"""What every test shares: one thread per process and seeds that do not leak."""

import os
import tempfile

import pytest
import torch

from support.common import define_torchvision_operators
from support.ranks import Ranks

if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    # The compiler's cache does not tell the instruction sets apart that it compiled for.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor-{capability}"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


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


def pytest_configure(config):
    # Two xdist workers on two cores: more threads per worker would only fight each other.
    torch.set_num_threads(1)
    # Lightning, Transformers and timm import torchvision if it is there.
    define_torchvision_operators()
