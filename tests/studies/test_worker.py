"""The process of a run."""

import json
import subprocess
import sys

from spatialgrad.studies import worker
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.runner import prepare
from support.common import python_environment
from support.studies import tiny_study

CODE = """
import json, sys
from spatialgrad.studies.worker import main
before = sorted(sys.modules)
code = main([sys.argv[1]])
print(json.dumps([code, before, sorted(sys.modules)]))
"""


def test_without_a_run(tmp_path, capsys):
    assert worker.main([str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


def test_a_run_loads_neither_the_command_line_nor_the_report_nor_what_runs_studies(tmp_path):
    job = make_plan(tiny_study(epochs=1), "pocket", tmp_path, only=["sgs"]).jobs[0]
    job.folder.mkdir(parents=True)
    prepare(job)
    command = [sys.executable, "-c", CODE, str(job.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=python_environment())
    assert done.returncode == 0, done.stderr
    code, before, after = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stdout
    assert (job.folder / "result.json").exists()
    ours = {".".join(name.split(".")[:2]) for name in after if name.startswith("spatialgrad.")}
    assert not ours & {"spatialgrad.cli", "spatialgrad.report"}
    assert not {"optuna", "ray", "jinja2"} & {name.split(".")[0] for name in after}
    # Lightning loads torchmetrics, and that loads matplotlib; nothing of ours does.
    assert not {"matplotlib", "lightning_fabric"} & {name.split(".")[0] for name in before}
