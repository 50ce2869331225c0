"""CPU time and memory of a report: 500 runs of 200 epochs with scalings.

Writes a synthetic study (10 networks, 10 arms each, 5 seeds; VGG-16's 13 convolutions; scalings and dependence every 5
epochs, as the recipes have it), reports it in a process of its own, and prints its CPU time and peak memory.
About 230 MB of it are PyTorch. `python benchmarks/bench_report.py --check` fails above 10 s or 300 MB.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from spatialgrad.studies.record import ArmRecord, RunRecord, StudyRecord

ARMS, SEEDS, EPOCHS, EVERY, LAYERS = 100, 5, 200, 5, 13
MOST_SECONDS, MOST_MEGABYTES = 10.0, 300.0
FIGURES = (
    "cost",
    "learning-curves",
    "overhead",
    "scalings",
    "dependence",
    "centre-share",
    "kernel-magnitudes",
    "kernel-similarity",
)


def write_study(folder: Path, *, every: int = EVERY) -> None:
    """Write a finished study with random numbers, and scalings after every so many epochs."""
    draw = random.Random(0)
    layers = [f"features.{3 * number}" for number in range(LAYERS)]
    # The content does not affect the time: one file of scalings for all runs.
    scalings = "".join(
        json.dumps({"step": 390 * epoch, "epoch": epoch, "scalings": _kernels(draw, layers)} | extra) + "\n"
        for epoch in range(every, EPOCHS, every)
        for extra in ({"dependence": _kernels(draw, layers)},)
    )
    records = []
    for number in range(ARMS):
        group, method = {"Model": f"network {number // 10}"}, "baseline" if number % 10 == 0 else "sgs"
        runs = tuple(RunRecord(folder=f"runs/arm{number}/seed{seed}", seed=seed) for seed in range(SEEDS))
        config = {"method": {"name": method}, "budget": {"epochs": EPOCHS}}
        for run in runs:
            _write_run(folder / run.folder, draw, {**config, "seed": run.seed}, scalings)
        record = ArmRecord(
            key=f"arm{number}",
            group=group,
            label=f"arm {number % 10}",
            reference=number % 10 == 0,
            shown=True,
            note="",
            tuned_by=None,
            published=(),
            config=config,
            runs=runs,
        )
        records.append(record)
    StudyRecord(
        name="large",
        title="A large study",
        shows="a benchmark",
        question="How long does a report take?",
        scale="paper",
        seeds=tuple(range(SEEDS)),
        layout="rows",
        figures=FIGURES,
        metric="accuracy",
        cost_unit=None,
        published_seeds=None,
        differences="",
        arms=tuple(records),
    ).write(folder)


def measure(folder: Path) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a process that writes the report."""
    code = (
        "import re, sys, time\n"
        "from pathlib import Path\n"
        "from spatialgrad.report.write import write_report\n"
        "write_report([sys.argv[1]])\n"
        # Not ru_maxrss: it begins with the memory of the process that has started this one.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(time.process_time(), peak)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True)
    seconds, size = map(float, done.stdout.split())
    return seconds, size * 1024 / 1e6


def _kernels(draw: random.Random, layers: list[str]) -> dict[str, list[list[float]]]:
    return {name: [[2 * draw.random() for _ in range(3)] for _ in range(3)] for name in layers}


def _write_run(folder: Path, draw: random.Random, config: object, scalings: str) -> None:
    folder.mkdir(parents=True)
    value = 0.7 + 0.01 * draw.random()
    lines = [
        {
            "step": 390 * (epoch + 1),
            "epoch": epoch,
            "lr": 0.1 * draw.random(),
            "train_loss": draw.random(),
            "train_accuracy": 1.1 * value * (epoch + 1) / EPOCHS,
            "test_loss": draw.random(),
            "test_accuracy": value * (epoch + 1) / EPOCHS,
        }
        for epoch in range(EPOCHS)
    ]
    phases = dict.fromkeys(("training", "evaluation", "scaling", "checkpoint"), 10.0 + draw.random())
    result = {
        "accuracy": value,
        "metric": "accuracy",
        "value": value,
        "dataset": "noise",
        "test": {"accuracy": value},
        "seconds": sum(phases.values()),
        **{f"{phase}_seconds": seconds for phase, seconds in phases.items()},
    }
    files = {"config.json": config, "result.json": result, "environment.json": {"cpu": "a processor", "cores": 2}}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timings.jsonl").write_text(json.dumps({"session": "2026-03-04T05:06:07+00:00", "step": 0}) + "\n")
    (folder / "scalings.jsonl").write_text(scalings)


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail above 10 s or 300 MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_study(Path(folder))
        seconds, megabytes = measure(Path(folder))
    print(f"{ARMS * SEEDS} runs of {EPOCHS} epochs: {seconds:.1f} s of CPU time, {megabytes:.0f} MB")
    if options.check and (seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES):
        sys.exit(f"more than {MOST_SECONDS:g} s or {MOST_MEGABYTES:g} MB")


if __name__ == "__main__":
    main()
