import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "bench_fidelity.py"


@pytest.mark.slow
def test_the_benchmark_compares_both_measures_and_manages_without_data(tmp_path):
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path), "--network", "vgg16-slim"]
    output = subprocess.run(
        [*command, "--steps", "2", "--images", "16"], capture_output=True, text=True, check=True
    ).stdout
    assert "note: cifar100 was not found; vgg16-slim sees fashion-mnist-mini" in output
    largest = dict(re.findall(r"\| (yes|no) \| (\d\.\d+) \|", output))
    assert set(largest) == {"yes", "no"}
    assert float(largest["yes"]) < 0.01
