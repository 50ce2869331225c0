import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_reparam.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_the_benchmark_prints_a_ratio_for_every_method():
    command = [sys.executable, str(SCRIPT), "--width", "0.125", "--batch-size", "4", "--rounds", "3"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ratios = {line[:14].strip(): re.findall(r" (\d+\.\d\d)\b", line) for line in output.splitlines()[2:11]}
    assert list(ratios) == ["plain", "SGS", "RepOpt", "RepOpt search", "ACB", "RepVGG", "QARepVGG", "DBB", "DyRep"]
    assert ratios["plain"] == ["1.00", "1.00"]
    assert float(ratios["DBB"][0]) > float(ratios["SGS"][0])
    assert float(ratios["DBB"][1]) > float(ratios["plain"][1])
