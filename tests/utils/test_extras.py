"""The command that installs an extra works where it is printed."""

import shutil
import sys
from pathlib import Path

import pytest

from spatialgrad.utils import extras
from spatialgrad.utils.extras import install_command


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout, in which the command is typed."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_checkout_it_is_installed_from_there(checkout, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).parent / name))
    assert install_command("train") == "pip install -e '.[train]'"
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert install_command("train") == f"pip install -e '{checkout}[train]'"


def test_the_environment_is_the_one_that_runs(checkout, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(checkout / ".venv/bin/python"))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/pip")
    assert install_command("ray") == ".venv/bin/python -m pip install -e '.[ray]'"


def test_elsewhere_it_comes_from_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert install_command("train").endswith("pip install 'spatialgrad[train]'")
