"""Every example runs as it stands, learns, and is done in half a minute on one core."""

import copy
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = {"plain_pytorch"}
# As `python example.py`, but where torchvision was built for another torch.
RUN = """
import runpy, sys
from support import common
common.define_torchvision_operators()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.slow) for path in EXAMPLES],
)
def test_example(example, tmp_path):
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(example)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr
    accuracy = re.search(r"test accuracy: ([\d.]+)%", run.stdout)
    assert accuracy, run.stdout
    assert float(accuracy[1]) > 60  # ten classes
    assert "NoEffectWarning" not in run.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 60  # short even where the processor has neither AVX2 nor a quiet moment
    assert not list(tmp_path.iterdir()), "an example should leave no files behind"


@pytest.mark.slow
def test_the_notebook_runs_and_is_shipped_with_its_output(tmp_path):
    shipped = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    shown = [output for cell in shipped.cells for output in cell.get("outputs", [])]
    assert {"text/html", "image/png"} <= {kind for output in shown for kind in output.get("data", {})}
    again = copy.deepcopy(shipped)
    NotebookClient(again, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    plain, scaled = (
        float(re.search(r"([\d.]+) %", output.text)[1])
        for cell in again.cells
        for output in cell.get("outputs", [])
        if output.get("text", "").startswith(("plain", "with"))
    )
    assert min(plain, scaled) > 80


def test_there_is_an_example_for_every_framework():
    assert {path.stem.partition("_")[0] for path in EXAMPLES} >= {
        "accelerate",
        "fabric",
        "lightning",
        "plain",
        "timm",
        "transformers",
    }
