"""``spatialgrad demo``: a narrow VGG-11 with and without scaling, on the images shipped with the package."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.cli.demo_picture import draw_scalings
from spatialgrad.data import ImageDataset, eval_batches, load_dataset, steps_per_epoch, train_batches
from spatialgrad.models import create_model
from spatialgrad.report.statistics import Comparison, compare_paired, correct
from spatialgrad.report.tables.cells import p_value
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.train.errors import ConfigError

MODEL, WIDTH, IMAGE_SIZE = "vgg11", 1 / 8, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoConfig:
    """Settings of the demonstration."""

    epochs: int = 10
    """Number of training epochs."""
    seeds: int = 3
    """Number of seeds; each trains with and without scaling."""
    batch_size: int = 128
    """Images per step."""
    learning_rate: float = 0.05
    """Initial learning rate; it decays to 0 along a cosine."""
    every: int = 2
    """Number of epochs between two updates of the scalings, after one epoch of warm-up."""
    out: Path = Path("spatialgrad-demo")
    """Output folder of the picture."""

    def __post_init__(self) -> None:
        # The first update comes after one epoch of warm-up.
        for name, least in {"epochs": 2, "seeds": 1, "batch_size": 1, "every": 1}.items():
            if getattr(self, name) < least:
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} must be at least {least}, got {getattr(self, name)}")


@dataclass
class DemoRun:
    """Result and time of one training."""

    seed: int
    accuracy: float = 0.0
    seconds: float = 0.0
    update_seconds: float = 0.0
    scalings: list[dict[str, Tensor]] = field(default_factory=list)


def demo(config: Annotated[DemoConfig, tyro.conf.arg(name="")] = DemoConfig()) -> None:  # noqa: B008 (frozen)
    """Train with and without scaling on the shipped images (under 3 minutes on 2 cores)."""
    run_demo(config)


def run_demo(config: DemoConfig, console: Console | None = None) -> Path:
    """Train with and without scaling, print a table, and draw every layer's scaling.

    Returns:
        Path of the picture.
    """
    console = console or Console()
    dataset = load_dataset("fashion-mnist-mini").with_image_size(IMAGE_SIZE)
    console.print(
        f"Training {MODEL} at {WIDTH:g} of its width on {dataset.description}, padded to "
        f"{IMAGE_SIZE}×{IMAGE_SIZE}: {config.epochs} epochs, {config.seeds} seeds, "
        "with and without spatial gradient scaling.",
        highlight=False,
    )
    steps = steps_per_epoch(dataset, config.batch_size) * config.epochs
    runs: dict[bool, list[DemoRun]] = {False: [], True: []}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task("", total=steps * 2 * config.seeds)
        for seed in range(config.seeds):
            # In alternating order, so that a machine that slows down favours neither.
            for scaled in (False, True) if seed % 2 == 0 else (True, False):
                bar.update(task, description=f"seed {seed}, {'scaled' if scaled else 'plain '}")
                run = train_once(config, dataset, seed, scaled, lambda: bar.advance(task))
                runs[scaled].append(run)
                if not console.is_terminal:  # without a progress bar
                    name = "scaled" if scaled else "plain"
                    console.print(f"seed {seed}, {name}: {100 * run.accuracy:.1f} % in {run.seconds:.0f} s")
    console.print(results_table(runs[False], runs[True]))
    console.print(verdict(runs[False], runs[True]), highlight=False)
    first = runs[True][0].scalings
    picture = draw_scalings(first[0], first[-1], config.out / "scalings.png")
    console.print(
        f"Scaling of every layer at the start and at the end (seed 0): [bold]{picture}[/bold]", highlight=False
    )
    return picture


def train_once(
    config: DemoConfig, dataset: ImageDataset[Any], seed: int, scaled: bool, advance: Any = lambda: None
) -> DemoRun:
    """Train one network; the three lines that add scaling are marked."""
    torch.manual_seed(seed)
    model = create_model(MODEL, num_classes=dataset.num_classes, width=WIDTH, in_channels=dataset.channels)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9, weight_decay=5e-4)
    steps = steps_per_epoch(dataset, config.batch_size) * config.epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sgs = SpatialGradientScaling(model, optimizer, every=config.every) if scaled else None  # 1
    run = DemoRun(seed)
    start = time.perf_counter()
    for epoch in range(config.epochs):
        batches = train_batches(dataset, config.batch_size, seed=seed, epoch=epoch, augmentation=dataset.augmentation)
        if sgs is not None and sgs.due(epoch):  # 2
            before = time.perf_counter()
            run.scalings.append(sgs.update(batches, batches=2))  # 3
            run.update_seconds += time.perf_counter() - before
        model.train()
        for images, labels in batches:
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            schedule.step()
            advance()
    run.seconds = time.perf_counter() - start
    run.accuracy = accuracy_of(model, dataset)
    return run


@torch.no_grad()
def accuracy_of(model: nn.Module, dataset: ImageDataset[Any]) -> float:
    """Share of the test images that are classified correctly."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in eval_batches(dataset, 250))
    return right / len(dataset.test)


def results_table(plain: list[DemoRun], scaled: list[DemoRun]) -> Table:
    """Accuracy, time and overhead with and without scaling."""
    table = Table(title=f"Test accuracy, mean ± standard deviation over {len(plain)} seeds")
    for column in ("", "accuracy", "per seed", "time per run", "updates"):
        table.add_column(column, justify="left" if not column else "right")
    for name, runs in (("plain", plain), ("scaled", scaled)):
        ordered = sorted(runs, key=lambda run: run.seed)
        seconds = statistics.median(run.seconds for run in runs)
        share = sum(run.update_seconds for run in runs) / sum(run.seconds for run in runs)
        table.add_row(
            name,
            mean_and_std([run.accuracy for run in runs]),
            "  ".join(f"{100 * run.accuracy:.1f}" for run in ordered),
            f"{seconds:.1f} s",
            f"{100 * share:.1f} %",
        )
    return table


def verdict(plain: list[DemoRun], scaled: list[DemoRun]) -> str:
    """The result in one sentence, with the statistics of the reports: a paired t test over seeds."""
    by_seed = {run.seed: run for run in plain}
    values, reference = ({run.seed: 100 * run.accuracy for run in runs} for runs in (scaled, plain))
    (comparison,) = correct([compare_paired(values, reference)])
    overhead = statistics.median(run.seconds / by_seed[run.seed].seconds for run in scaled) - 1
    finding, duration = _finding(comparison), f"time {100 * overhead:+.1f} %"
    return f"{finding}; {duration} (median of pairs; pairs vary by several percent on a busy machine)."


def _finding(comparison: Comparison | None) -> str:
    if comparison is None:
        return "No pair of runs to compare"
    difference = comparison.difference
    word = "Gain" if difference > 0 else "Loss" if difference < 0 else "Difference"
    if comparison.n == 1:
        return f"{word} with a single seed: {difference:+.2f} points, which says nothing about other seeds"
    finding = f"{word}: {difference:+.2f} points over {comparison.n} seeds"
    if comparison.low is None or comparison.high is None or comparison.p is None:
        return f"{finding}, {comparison.note}"
    judgement = "significant" if comparison.supported else "may be due to chance"
    p = p_value(comparison.p)
    p = p if p.startswith("<") else f"= {p}"
    interval = f"95 % interval {comparison.low:+.2f} to {comparison.high:+.2f}"
    return f"{finding} ({interval}, p {p}): {judgement}"


def mean_and_std(accuracies: list[float]) -> str:
    """Accuracies in percent."""
    spread = f" ± {100 * statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{100 * statistics.mean(accuracies):.2f}{spread} %"
