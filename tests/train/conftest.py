"""One finished, one interrupted and one branched run for all tests, each of which gets a copy."""

import shutil

import pytest

from support.training import quietly, stop_at, tiny


@pytest.fixture(scope="session")
def _runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def _copy(make, source, target):
    if not source.exists():
        make(source)
    shutil.copytree(source, target)
    return target


@pytest.fixture
def finished(_runs, tmp_path):
    """Folder of a finished run of sgs: 3 epochs of 5 steps."""
    return _copy(lambda folder: quietly(tiny(folder, "sgs")), _runs / "finished", tmp_path / "finished")


@pytest.fixture
def interrupted(_runs, tmp_path):
    """Folder of the same run, stopped in its second epoch, after 7 steps."""
    return _copy(lambda folder: stop_at(7, tiny(folder, "sgs")), _runs / "interrupted", tmp_path / "interrupted")


@pytest.fixture
def branched(_runs, tmp_path):
    """Folder of a finished run of dbb: 2 epochs of 5 steps."""
    return _copy(lambda folder: quietly(tiny(folder, "dbb", epochs=2)), _runs / "branched", tmp_path / "branched")
