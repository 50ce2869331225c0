import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.common import python_environment
from support.training import quietly, tiny

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_live_difference.py"


@pytest.mark.slow
def test_the_benchmark_compares_every_layer_of_a_run(tmp_path):
    quietly(tiny(tmp_path / "run", "sgs", epochs=1))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "run"), "--batches", "1", "--draws"]

    def run(draws):
        return subprocess.run([*command, draws], capture_output=True, text=True, env=python_environment())

    output = run("1").stdout
    layers = re.findall(r"^features\.\d+ +\d\.\d\d((?: +\d\.\d{3}){6})$", output, re.MULTILINE)
    assert len(layers) == 8
    assert len(re.findall(r"at most \d\.\d{3}", output)) == 3
    # The images themselves are the same in both modes.
    assert layers[0].split()[2:4] == ["0.000", "0.000"]
    assert "An epoch of this run has 5 batches" in run("2").stderr
