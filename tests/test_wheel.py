"""The wheel in an empty environment: the method needs torch and numpy alone, and the README's code runs there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_runs_from_the_wheel(tmp_path):
    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    run(sys.executable, *pip, "wheel", "--no-deps", "-w", tmp_path, ROOT, cwd=tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    (wheel,) = tmp_path.glob("spatialgrad-*.whl")
    run(python, *pip, "install", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    code = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "reader.py").write_text(code)
    printed = run(python, "-W", "error::UserWarning", "reader.py", cwd=tmp_path)
    assert re.search(r"^0 +3×3 +[\d.]+ % +1 +after step 200$", printed, re.MULTILINE)
    installed = run(python, *pip, "list", "--format", "freeze", cwd=tmp_path)
    assert not re.search(r"^(matplotlib|tyro|rich|scipy)==", installed, re.MULTILINE)
    assert "pip install" in run(python, "-c", MISSING, cwd=tmp_path)


MISSING = """
from spatialgrad.cli.main import main
import contextlib, io
said = io.StringIO()
with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
    main(["demo"])
print(said.getvalue())
"""
