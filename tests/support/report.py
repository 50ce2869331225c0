"""Studies on disk for the tests of reports: real tiny trainings, and synthetic ones with known numbers."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

from spatialgrad.report.figures import build_figures
from spatialgrad.report.load import load_results
from spatialgrad.report.page import Part
from spatialgrad.report.single import load_single, single_tables
from spatialgrad.report.tables.results import build_tables
from spatialgrad.studies.paper.table1_cifar import PUBLISHED
from spatialgrad.studies.record import StudyRecord
from spatialgrad.studies.study import Arm, Point, Published, RunRecord, Search
from spatialgrad.train import Run, TrainConfig
from spatialgrad.train.config import to_dict, with_values
from support.training import quietly, tiny

DATASET = "Made-up images, 20k/5k subset"
EPOCHS = 4


def arm(key, label, group, seeds, *, published=(), config=None, method="baseline", k=5.0, epochs=EPOCHS, **fields):
    """An arm, with a run per seed in runs/KEY/seedN."""
    values = {"method.name": method, "scaling.k": k, "budget.epochs": epochs}
    return Arm(
        group=group,
        label=label,
        published=tuple(published),
        config=config or with_values(TrainConfig(), values),
        runs=tuple(RunRecord(folder=f"runs/{key}/seed{seed}", seed=seed) for seed in seeds),
        **fields,
    )


def record(arms, *, seeds=(0, 1, 2), **fields):
    """A study's record."""
    values = {
        "name": "cifar",
        "title": "CIFAR with four methods",
        "shows": "Table 1",
        "question": "Does scaling do what branches do, at the price of none?",
        "scale": "desk",
        "layout": "rows",
        "figures": ("cost", "learning-curves", "overhead", "scalings"),
        "metric": "accuracy",
        "cost_unit": "GPU hours",
        "published_seeds": 5,
        "differences": "A quarter of the width, and 30 epochs instead of 600.",
    }
    return StudyRecord(**{**values, **fields}, seeds=tuple(seeds), arms=tuple(arms))


def write_run(
    folder,
    value,
    *,
    seed=0,
    seconds=100.0,
    update_seconds=5.0,
    epochs=EPOCHS,
    layers=(),
    state="finished",
    config=None,
    method="baseline",
    **result,
):
    """Write a run with known numbers: the accuracy rises evenly to `value` (a share).

    Args:
        folder: Of the run.
        value: The accuracy.
        seed: Of the run.
        seconds: In total.
        update_seconds: Of the method's updates.
        epochs: Of the default config; half of them are done if the run has not finished.
        layers: Names and sizes of kernels whose scalings are logged.
        state: finished, interrupted or failed.
        config: That of its arm; by default of the method.
        method: Of the default config.
        result: Further values of the result.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    config = config or with_values(TrainConfig(), {"method.name": method, "budget.epochs": epochs})
    epochs = config.budget.epochs
    (folder / "config.json").write_text(json.dumps(to_dict(replace(config, seed=seed))))
    environment = {
        "python": "3.12.1",
        "versions": {"spatialgrad": "0.1.0", "torch": "2.13.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "system": "Linux",
        "cpu": "A quiet processor",
        "cores": 2,
        "threads": 1,
        "device": "cpu",
        "processes": 1,
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    done = epochs if state == "finished" else epochs // 2
    shares = {epoch: value * (epoch + 1) / epochs for epoch in range(done)}
    write_lines(
        folder / "metrics.jsonl",
        [
            {"step": 10 * (e + 1), "epoch": e, "lr": 0.1, "train_accuracy": 1.1 * share, "test_accuracy": share}
            for e, share in shares.items()
        ],
    )
    write_lines(folder / "timings.jsonl", [{"session": "2026-03-04T05:06:07+00:00", "step": 0}])
    if layers:
        updates = [
            {"step": 10 * e, "epoch": e, "update": e, "scalings": made_up(layers, e), "dependence": decaying(layers, e)}
            for e in range(1, done)
        ]
        write_lines(folder / "scalings.jsonl", updates)
    if state == "failed":
        Run.open(folder).record_failure("the loss is not a number any more after step 20", 3)
    if state == "finished":
        values = {
            "model": config.model.name,
            "dataset": DATASET,
            "method": config.method.name,
            "seed": seed,
            "epochs": epochs,
            "steps": 10 * epochs,
            "metric": "accuracy",
            "value": value,
            "test": {"accuracy": value, "loss": 1.0, "top5": min(1.0, value + 0.2)},
            "best": value,
            "trained": {"accuracy": value},
            "merge_difference": None,
            "seconds": seconds,
            "training_seconds": seconds - update_seconds - 6,
            "evaluation_seconds": 5.0,
            "update_seconds": update_seconds,
            "checkpoint_seconds": 1.0,
            "parameters": 15_000_000,
            "macs": 313_000_000,
            "training_parameters": 15_000_000,
            "training_macs": 313_000_000,
            "peak_memory_bytes": 600 * 2**20,
        }
        (folder / "result.json").write_text(json.dumps({"accuracy": value, **values, **result}))


def write_lines(path, entries):
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def write_arm(folder, arm, values, **fields):
    """Write a finished run of an arm for each value, by seed."""
    for run, value in zip(arm.runs, values, strict=False):
        write_run(folder / run.folder, value, seed=run.seed, config=arm.config, **fields)


def made_up(layers, epoch):
    """A G of every layer, more centred with depth and time, with mean 1."""
    found = {}
    for (name, size), raw in zip(layers, decaying(layers, epoch).values(), strict=True):
        mean = sum(map(sum, raw)) / size**2
        found[name] = [[value / mean for value in row] for row in raw]
    return found


def decaying(layers, epoch):
    """An S of every layer that falls exponentially with the distance, faster with depth and time."""
    return {
        name: [
            [math.exp(-0.12 * (depth + epoch) * math.hypot(i - size // 2, j - size // 2)) for j in range(size)]
            for i in range(size)
        ]
        for depth, (name, size) in enumerate(layers)
    }


def table_1(folder, **fields):
    """A synthetic Table 1 at desk scale: 2 data sets, 4 methods, 3 seeds, one run failed and one waiting."""
    layers = [(f"features.{3 * i}", 3) for i in range(13)]
    gains = {"Origin": 0.0, "DBB": 0.3, "DyRep": 0.2, "SGS (ours)": 1.4}
    seconds = {"Origin": 1000.0, "DBB": 3000.0, "DyRep": 2600.0, "SGS (ours)": 1080.0}
    arms = []
    for data, base in (("CIFAR-10", 90.0), ("CIFAR-100", 62.0)):
        for label, gain in gains.items():
            key = f"{data}-{label}".lower().replace(" ", "-").strip(")").replace("(", "")
            arms.append(
                arm(
                    key,
                    label,
                    {"Dataset": data},
                    (0, 1, 2),
                    reference=label == "Origin",
                    published=PUBLISHED[data][label],
                    epochs=6,
                )
            )
            for seed in range(3):
                if (data, label, seed) == ("CIFAR-10", "DyRep", 2):
                    continue
                state = "failed" if (data, label, seed) == ("CIFAR-100", "DyRep", 1) else "finished"
                own = base + 0.4 * seed + gain + 0.02 * ((7 * seed * seed + 3 * seed * len(label)) % 5)
                write_run(
                    folder / "runs" / key / f"seed{seed}",
                    own / 100,
                    seed=seed,
                    config=arms[-1].config,
                    seconds=seconds[label] + 10 * seed,
                    step_seconds={"median": seconds[label] / 1e4, "low": 0.05, "high": 0.4},
                    memory_format="contiguous" if label == "DBB" else "channels_last",
                    update_seconds=60.0 if label.startswith("SGS") else 0.0,
                    layers=layers if label.startswith("SGS") else (),
                    state=state,
                )
    written = record(arms, **fields)
    written.write(folder)
    return written


def architectures(folder):
    """A synthetic table with one row per network, 17 of them, two methods side by side."""
    arms = []
    for number in range(17):
        group = {"Model": f"A network with a name of some length {number}"}
        for label, gain in (("Baseline", 0.0), ("SGS (Ours)", 0.5 + 0.1 * number)):
            key = f"net{number}-{label[:3].lower()}"
            published = [Published(mean=70.8 + number / 2 + 2 * gain, std=0.1)]
            arms.append(arm(key, label, group, (0, 1, 2), reference=label == "Baseline", published=published))
            for seed in range(3):
                value = 40 + number + gain + 0.3 * seed + 0.01 * ((seed * 5 + number) % 7) * (gain > 0)
                write_run(folder / "runs" / key / f"seed{seed}", value / 100, seed=seed, seconds=50 + number)
    written = record(
        arms,
        name="architectures",
        title="Seventeen networks",
        shows="Table 4",
        layout="columns",
        figures=("learning-curves", "overhead"),
        cost_unit=None,
        published_seeds=3,
    )
    written.write(folder)
    return written


def search_study(folder):
    """A synthetic search over α and β, and one over k, some points still waiting."""
    points, searched = [], with_values(TrainConfig(), {"budget.epochs": EPOCHS})
    grid = (0.8, 1.0, 1.25, 1.7)
    for i, alpha in enumerate(grid):
        for j, beta in enumerate(grid):
            number = len(points)
            run = RunRecord(folder=f"searches/alpha-beta/point-{number:02d}/seed0", seed=0)
            points.append(Point(values={"scaling.alpha": alpha, "scaling.beta": beta}, runs=(run,)))
            if number < 14:
                config = with_values(searched, points[-1].values)
                write_run(folder / run.folder, 0.5 + 0.01 * i - 0.004 * (j - 2) ** 2, seconds=10, config=config)
    group = {"Dataset": "CIFAR-100"}
    arms = [
        arm("origin", "Origin", group, (0, 1), reference=True),
        arm("grid", "Grid", group, (0, 1), tuned_by="alpha-beta"),
    ]
    arms += [arm(f"k{k}", f"k = {k}", group, (0, 1), method="sgs", k=float(k)) for k in range(1, 8)]
    for each in arms:
        k = each.config.scaling.k if each.label.startswith("k") else 0
        for seed in (0, 1):
            gain = 0.02 - 0.001 * (k - 5) ** 2 if k else 0
            write_run(folder / each.runs[seed].folder, 0.5 + gain + 0.004 * seed, seed=seed, config=each.config)
    written = record(
        arms,
        name="search-methods",
        title="How to search",
        shows="Table 3",
        seeds=(0, 1),
        figures=("k-curve",),
        searches=(
            Search(
                name="alpha-beta",
                config=searched,
                grid={"scaling.alpha": grid, "scaling.beta": grid},
                points=tuple(points),
            ),
        ),
    )
    written.write(folder)
    return written


def real_study(folder, *, seeds=(0, 1), epochs=3):
    """A study of real trainings: a baseline and SGS, each once per seed."""
    arms = []
    for label, method in (("Baseline", "baseline"), ("SGS (ours)", "sgs")):
        key = f"tiny-{method}"
        config = tiny(folder, method, epochs=epochs)
        arms.append(
            arm(
                key,
                label,
                {"Dataset": "Fashion-MNIST"},
                seeds,
                reference=method == "baseline",
                published=[Published(mean=73.2, std=0.1, cost=2.3)],
                config=config,
            )
        )
        for seed in seeds:
            quietly(tiny(folder / "runs" / key / f"seed{seed}", method, epochs=epochs, seed=seed))
    written = record(
        arms,
        seeds=seeds,
        name="learned-scalings",
        title="What the scalings learn",
        shows="Figures 5 and 7",
        scale="pocket",
        figures=(
            "learning-curves",
            "overhead",
            "scalings",
            "centre-share",
            "dependence",
            "kernel-magnitudes",
            "kernel-similarity",
        ),
    )
    written.write(folder)
    return written


def table_rows(study, table=0):
    """The rows of a table of a study or a run: its cells by title; lines of a cell are joined by a slash."""
    table = make_part(study).tables[table]
    constants = dict(each.split(": ", 1) for each in table.constants)
    titles = [column.title.replace("\u00a0", " ") for column in table.columns]
    return [dict(zip(titles, map(joined, row), strict=True)) | constants for row in table.rows]


def joined(cell):
    return "/".join(cell.lines)


def make_part(study, figures=()):
    """A study's or a run's part of a page, with these of its figures."""
    single = not (study / "study.json").exists()
    results = load_single(study) if single else load_results(study)
    tables = (single_tables if single else build_tables)(results)
    known = replace(results, record=replace(results.record, figures=tuple(figures)))
    return Part(id="x", study=results, tables=tables, figures=build_figures(known, "x") if figures else ())


def accuracies(folder, key):
    """Accuracies in per cent by seed, straight from the result files."""
    found = {}
    for path in sorted((folder / "runs" / key).glob("seed*/result.json")):
        found[int(path.parent.name.removeprefix("seed"))] = 100 * json.loads(path.read_text())["accuracy"]
    return found


def text_of(values):
    """Mean and deviation as a report prints them."""
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2f}"


def minus(text):
    return text.replace("-", "−")
