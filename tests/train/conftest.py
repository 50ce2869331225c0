"""One finished, one interrupted and one branched run for all tests, each of which gets a copy."""

import shutil

import pytest


@pytest.fixture(scope="session")
def _runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def _copy(make, source, target):
    # Imported here: it trains, and conftest.py of all tests must choose the processor's instructions first.
    from support import training

    if not source.exists():
        make(training, source)
    shutil.copytree(source, target)
    return target


@pytest.fixture
def finished(_runs, tmp_path):
    """Folder of a finished run of sgs: 3 epochs of 5 steps."""
    return _copy(lambda t, folder: t.quietly(t.tiny(folder, "sgs")), _runs / "finished", tmp_path / "finished")


@pytest.fixture
def interrupted(_runs, tmp_path):
    """Folder of the same run, stopped in its second epoch, after 7 steps."""
    return _copy(lambda t, folder: t.stop_at(7, t.tiny(folder, "sgs")), _runs / "interrupted", tmp_path / "interrupted")


@pytest.fixture
def branched(_runs, tmp_path):
    """Folder of a finished run of dbb: 2 epochs of 5 steps."""
    return _copy(
        lambda t, folder: t.quietly(t.tiny(folder, "dbb", epochs=2)), _runs / "branched", tmp_path / "branched"
    )
