import os
import subprocess
import sys

import pytest


def spatialgrad(*arguments, **options):
    command = [sys.executable, "-m", "spatialgrad", *arguments]
    # One thread: other tests run beside this one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment, **options)


def test_help_lists_the_commands():
    done = spatialgrad("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "under 3 minutes" in done.stdout


def test_demo_trains_reports_and_draws(tmp_path):
    done = spatialgrad("demo", "--seeds", "2", "--epochs", "2", "--batch-size", "512", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "over 2 seeds" in done.stdout
    assert "points" in done.stdout
    assert "%" in done.stdout
    picture = tmp_path / "out" / "scalings.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("option", "value"), [("--epochs", "1"), ("--seeds", "0"), ("--batch-size", "0")])
def test_demo_refuses_what_makes_no_sense(option, value):
    done = spatialgrad("demo", option, value)
    assert done.returncode != 0
    assert "Invalid" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_answered_with_the_known_ones():
    done = spatialgrad("dmeo")
    assert done.returncode == 2
    assert "demo" in done.stdout + done.stderr


def test_without_the_extra_the_way_out_is_named():
    code = "import sys; sys.modules['tyro'] = None; from spatialgrad.cli.main import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'spatialgrad[train]'" in done.stderr
