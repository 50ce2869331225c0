"""The command as a user starts it, and what all subcommands share."""

import platform
import subprocess
import sys
from importlib.metadata import version

import pytest

from spatialgrad import __version__
from spatialgrad.cli.main import SPINS
from support.common import python_environment

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def run_python(*arguments, **variables):
    command = [sys.executable, *arguments]
    environment = {key: value for key, value in python_environment().items() if key not in WAITING} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_python_m_spatialgrad_lists_the_subcommands():
    done = run_python("-m", "spatialgrad", "--help")
    assert done.returncode == 0, done.stderr
    names = ("demo", "train", "resume", "export", "compare", "tune", "data", "model", "study", "report")
    for name in names:
        assert f" {name} " in done.stdout
    assert "under 3 minutes" in " ".join(done.stdout.replace("│", "").split())


def test_the_version_is_printed_without_importing_torch():
    code = (
        "import sys; from spatialgrad.cli.main import main\n"
        "code = main(['--version'])\n"
        "print(code, sorted({'torch', 'numpy', 'tyro'} & set(sys.modules)))"
    )
    done = run_python("-c", code)
    said, rest = done.stdout.splitlines()
    assert rest == "0 []", done.stderr
    assert said == f"spatialgrad {__version__} (torch {version('torch')}, Python {platform.python_version()})"
    assert run_python("-m", "spatialgrad", "--version").stdout == said + "\n"


def test_an_unknown_command_is_answered_with_the_known_ones(command):
    code, said = command("dmeo")
    assert code == 2
    assert "demo" in said
    assert "Traceback" not in said


def test_without_the_extra_the_way_out_is_named():
    code = "import sys; sys.modules['tyro'] = None; from spatialgrad.cli.main import main; sys.exit(main(['demo']))"
    done = run_python("-c", code)
    assert done.returncode == 1
    assert "pip install 'spatialgrad[train]'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's threads are those of libgomp on Linux only")
@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, SPINS),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000"),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_user_decides(given, spins):
    done = run_python("-m", "spatialgrad", "model", "show", "vgg11", OMP_DISPLAY_ENV="VERBOSE", **given)
    assert done.returncode == 0, done.stderr
    # What the library itself says when PyTorch loads it.
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
