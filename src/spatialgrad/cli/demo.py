"""``spatialgrad demo``: what three minutes can show, on the images that are shipped with the package.

The Lemma at work (a branched and a scaled network stay equal while both train), what each method costs, the G of every
layer, and what longer trainings have shown.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from spatialgrad.cli.terminal import program
from spatialgrad.train.config import TrainConfig, with_values
from spatialgrad.train.flags import require

if TYPE_CHECKING:
    from torch import nn

    from spatialgrad.train.learner import Learner

TRAINING = {
    **{"model.name": "vgg11-linear", "data.name": "fashion-mnist-mini", "data.image_size": 32, "data.cutout": 0},
    **{"data.drop_last": True, "optimizer.lr": 0.05, "scaling.every": 1, "machine.devices": 1},
    "machine.accelerator": "cpu",
}
LABELS = {"baseline": "plain", "sgs": "SGS", "acb": "ACB", "repvgg": "RepVGG", "dbb": "DBB"}
LEMMA = {"data.batch_size": 32, "data.augment": False, "machine.precision": "64-true", "budget.epochs": 1}
UPDATE_EVERY = 5
"""Epochs between two updates in the paper's schedule for CIFAR, over which their time is spread."""
QUOTED = files("spatialgrad.cli") / "desk_result.json"
"""The result that is quoted: written by `make results` from the runs in results/."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoConfig:
    """Settings of the demonstration."""

    epochs: int = 3
    """Number of epochs that each method trains for its cost."""
    steps: int = 40
    """Number of training steps for the Lemma."""
    width: float = 0.125
    """Width of the network."""
    batch_size: int = 128
    """Images per step."""
    out: Path = Path("spatialgrad-demo")
    """Output folder of the picture."""

    def __post_init__(self) -> None:
        # The first update comes after one epoch of warm-up.
        for name, least in {"epochs": 2, "steps": 1, "batch_size": 1}.items():
            require(getattr(self, name) >= least, name, getattr(self, name), f"must be at least {least}")
        require(0 < self.width <= 1, "width", self.width, "must be above 0 and at most 1")

    def training(self, method: str, **values: Any) -> TrainConfig:
        """The config of a training of the demonstration."""
        given = {"model.width": self.width, "data.batch_size": self.batch_size, "budget.epochs": self.epochs}
        return with_values(TrainConfig(), {**TRAINING, **given, "method.name": method, **values})


def demo(config: Annotated[DemoConfig, tyro.conf.arg(name="")] = DemoConfig()) -> None:  # noqa: B008 (frozen)
    """Gradient scaling matches multi-branch training at the cost of a plain network: see it in under 3 minutes."""
    from spatialgrad.plot import plot_scalings

    console = Console(highlight=False)
    lemma = {name: start(config.training(name, **LEMMA)) for name in ("lemma", "lemma-unscaled")}
    most = lemma["lemma"].steps_per_epoch
    require(config.steps <= most, "steps", config.steps, f"must be at most {most}, the steps of an epoch")
    most = len(lemma["lemma"].task.dataset.train)
    require(config.batch_size <= most, "batch_size", config.batch_size, f"must be at most {most}")
    costs = {name: Cost(start(config.training(name))) for name in LABELS}
    dataset = costs["sgs"].learner.task.description
    console.print(f"VGG-11 at {config.width:g} of its width on {dataset}, on the CPU.")
    console.print(f"Training {config.steps} steps with branches, with scaling and without ...")
    distances = {name: train_lemma(learner, config.steps) for name, learner in lemma.items()}
    measure_costs(list(costs.values()), config.epochs, console)
    picture = config.out / "scalings.png"
    config.out.mkdir(parents=True, exist_ok=True)
    scalings = costs["sgs"].learner.method.sgs.scalings  # type: ignore[attr-defined]
    plot_scalings(scalings).savefig(picture, dpi=150)
    console.print("\n[bold]Scaled gradients learn what branches learn[/bold]")
    console.print(lemma_text(config.steps, distances["lemma"], distances["lemma-unscaled"]))
    console.print("\n[bold]Cost[/bold]")
    console.print(cost_table(costs))
    console.print(
        f"Time: processor time, median of {config.epochs} interleaved epochs; an epoch of plain training took "
        f"{statistics.median(costs['baseline'].epochs):.2f} s. SGS updates every {UPDATE_EVERY} epochs. Memory: "
        f"parameters, gradients, momentum and what the backward pass keeps for {config.batch_size} images.",
        style="dim",
    )
    console.print("\n[bold]Does it help?[/bold]")
    console.print(quoted_text(json.loads(QUOTED.read_text())))
    console.print(
        f"\nPicture: {picture} (G of every layer: red positions learn faster, blue ones slower)", soft_wrap=True
    )
    console.print(f"Verdict: {verdict(distances['lemma'], costs)}")
    console.print("\n" + next_commands(), markup=False, soft_wrap=True)


def start(config: TrainConfig) -> Learner:
    """A network with its method and optimizer, ready for its first step; nothing is written."""
    from spatialgrad.train.learner import Learner
    from spatialgrad.train.runtime import Runtime
    from spatialgrad.train.start_weights import StartWeights
    from spatialgrad.train.tasks import find_task

    runtime = Runtime(config.machine)
    learner = Learner(config, runtime, find_task(config.task)(config, runtime.device), StartWeights())
    learner.start()
    learner.model.train()
    return learner


def train_lemma(learner: Learner, steps: int) -> dict[str, float]:
    """Train a network beside a branched one; the losses and the distance of their kernels after the last step."""
    entry: dict[str, float] = {}
    for step, batch in zip(range(steps), learner.train_batches(0), strict=False):
        entry = {**entry, **learner.step(batch, step)[1]}
        entry.setdefault("first_loss", entry["loss_scaled"])
    return {**entry, **learner.method.results()}


@dataclass
class Cost:
    """What training by one method costs.

    Args:
        learner: Before its first step.
    """

    learner: Learner
    epochs: list[float] = field(default_factory=list)
    """Processor seconds of each epoch: what else the machine does hardly changes them."""
    updates: list[float] = field(default_factory=list)
    """Processor seconds of each update."""

    def __post_init__(self) -> None:
        module = self.learner.module
        self.parameters = sum(parameter.numel() for parameter in module.parameters())
        self.memory_bytes = training_bytes(self.learner, module)

    @property
    def update_share(self) -> float:
        """Seconds of an epoch's share of the updates."""
        return statistics.median(self.updates) / UPDATE_EVERY if self.updates else 0.0

    def ratio(self, plain: Cost) -> float:
        """Time as a multiple of plain training: the median over rounds, so that other work disturbs it less."""
        pairs = zip(self.epochs, plain.epochs, strict=True)
        return statistics.median((mine + self.update_share) / theirs for mine, theirs in pairs)


def measure_costs(costs: list[Cost], rounds: int, console: Console) -> None:
    """Train an epoch of every method in each round, in rotating order."""
    began = time.monotonic()
    for epoch in range(rounds):
        left = f", about {(time.monotonic() - began) / epoch * (rounds - epoch):.0f} s left" if epoch else ""
        console.print(f"Training each of {len(costs)} methods, epoch {epoch + 1} of {rounds}{left} ...")
        shift = epoch % len(costs)
        for cost in costs[shift:] + costs[:shift]:
            learner, before = cost.learner, time.process_time()
            if learner.before_epoch(epoch).log:
                cost.updates.append(time.process_time() - before)
            learner.model.train()
            before = time.process_time()
            for number, batch in enumerate(learner.train_batches(epoch)):
                learner.step(batch, epoch * learner.steps_per_epoch + number)
            cost.epochs.append(time.process_time() - before)


def training_bytes(learner: Learner, module: nn.Module) -> int:
    """Memory of a training step with momentum: three times the parameters, and what the backward pass keeps.

    It is counted and not measured, so that it is exact and does not depend on the allocator.
    """
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        # Alive until it is counted: a storage that is freed may come back under the same address.
        loss, _ = learner.task.loss(module, next(iter(learner.train_batches(0))))
        total = sum(kept.values()) + 3 * sum(p.numel() * p.element_size() for p in module.parameters())
    del loss
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    return total


def lemma_text(steps: int, scaled: dict[str, float], unscaled: dict[str, float]) -> str:
    """What the Lemma says, and how exactly it held."""
    return (
        f"{steps} steps in double precision: a network with four branches in every convolution, and a plain one whose "
        f"gradients are scaled by the sum of the branches' masks. Loss of both: {scaled['first_loss']:.3f} → "
        f"{scaled['loss_branched']:.3f} and {scaled['loss_scaled']:.3f}. Largest difference between their kernels: "
        f"{scaled['distance']:.0e}, which is rounding. Without scaling it is {unscaled['distance']:.2f} (of the "
        "largest weight of a kernel)."
    )


def cost_table(costs: dict[str, Cost]) -> Table:
    """Time, parameters and memory of every method, beside plain training."""
    table, plain = Table(), costs["baseline"]
    for column in ("method", "time", "parameters", "memory", "", "after training"):
        table.add_column(column, justify="left" if column in ("method", "after training") else "right")
    for name, cost in costs.items():
        table.add_row(
            LABELS[name],
            f"{cost.ratio(plain):.2f} ×",
            f"{cost.parameters:,}",
            f"{cost.memory_bytes / 2**20:.0f} MiB",
            f"{cost.memory_bytes / plain.memory_bytes:.2f} ×",
            "deploy" if name in ("baseline", "sgs") else "merge",
        )
    return table


def quoted_text(result: dict[str, Any]) -> str:
    """The result of longer trainings, which is quoted and not measured here."""
    from spatialgrad.report.tables.cells import signed

    gain, low, high = (signed(result[name]) for name in ("difference", "low", "high"))
    unclear = "" if result["low"] > 0 or result["high"] < 0 else ": no clear difference"
    return (
        f"A minute is too short to show a difference. From longer runs in results/: {result['dataset']}, "
        f"{result['network']}, {result['epochs']} epochs, {result['seeds']} seeds: plain {result['plain']:.2f} %, "
        f"scaled {result['scaled']:.2f} %, {gain} points (95 % interval {low} to {high}){unclear}.\n"
        f"To repeat it: {result['command'].replace('spatialgrad', program(), 1)}"
    )


def verdict(lemma: dict[str, float], costs: dict[str, Cost]) -> str:
    """The demonstration in a sentence."""
    plain, branched = costs["baseline"], [costs[name].ratio(costs["baseline"]) for name in ("acb", "repvgg", "dbb")]
    held = "exactly what branches learn, to rounding" if lemma["distance"] < 1e-9 else "NOT what branches learn"
    return (
        f"scaled gradients learn {held}, in {costs['sgs'].ratio(plain):.2f} times the time of plain training; branches "
        f"take {min(branched):.2f} to {max(branched):.2f} times."
    )


def next_commands() -> str:
    """Three commands to try next, as they can be typed here."""
    commands = {
        "compare FOLDER": "does it help on your images? One folder per class; half an hour",
        "train --recipe pocket": "a training from the command line, in a minute",
        "study run cifar --scale pocket": "the paper's first table, small, in minutes",
    }
    width = max(map(len, commands))
    lines = [f"  {program()} {command:<{width}}  # {what}" for command, what in commands.items()]
    return "\n".join(["Next:", *lines, "In your own loop: sgs = SpatialGradientScaling(model, optimizer, live=True)"])
