"""A finished study for all tests that look at one, or spoil a copy of it."""

import shutil

import pytest

from support.studies import run_here, tiny_study


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two arms with two seeds, and one arm that a search of two points tunes; archived while it ran."""
    folder = tmp_path_factory.mktemp("trained") / "tiny-pocket"
    run_here(tiny_study(tuned=True), folder, num_seeds=2, archive=folder.parent / "results")
    return folder


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(trained, tmp_path / trained.name)


@pytest.fixture
def archive(trained, tmp_path):
    """A copy of the folder that it was archived in."""
    return shutil.copytree(trained.parent / "results", tmp_path / "results")
