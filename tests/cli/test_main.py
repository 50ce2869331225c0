"""The command as a user starts it, and what all subcommands share."""

import platform
import subprocess
import sys
from importlib.metadata import version

from spatialgrad import __version__
from support.common import python_environment


def run_python(*arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=python_environment())


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
