"""The course of the demonstration: the Lemma, each method's price, every layer's scaling, and what to do next."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from spatialgrad.cli.demo_config import DemoConfig
from spatialgrad.cli.demo_lemma import BATCH_SIZE, LemmaResult, show_lemma
from spatialgrad.cli.demo_picture import draw_scalings
from spatialgrad.cli.demo_price import METHODS, UPDATE_EVERY, Price, measure_prices
from spatialgrad.data import load_dataset, steps_per_epoch
from spatialgrad.report.tables.cells import signed
from spatialgrad.studies.console import counted
from spatialgrad.train.errors import ConfigError

MODEL, IMAGE_SIZE = "vgg11-linear", 32
KEPT = files("spatialgrad.cli") / "desk_result.json"
"""The result that is quoted: written by `make results` from the runs kept in the repository."""


def run_demo(config: DemoConfig, console: Console | None = None) -> Path:
    """Show the Lemma, the price of each method, and the scaling of every layer.

    Returns:
        Path of the picture.
    """
    console = console or Console()
    dataset = load_dataset("fashion-mnist-mini").with_image_size(IMAGE_SIZE)
    most = steps_per_epoch(dataset, BATCH_SIZE)
    if config.steps > most:
        raise ConfigError(f"--steps must be at most {most}, the steps of an epoch, got {config.steps}")
    if config.batch_size > len(dataset.train):
        raise ConfigError(f"--batch-size must be at most {len(dataset.train)}, got {config.batch_size}")
    threads = counted(torch.get_num_threads(), "thread")
    console.print(f"VGG-11 at {config.width:g} of its width on {dataset.description}, {threads}.", highlight=False)
    epoch = steps_per_epoch(dataset, config.batch_size, drop_last=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), console=console
    )
    with bar:
        task = bar.add_task("a branched and a scaled network", total=config.steps)
        lemma = show_lemma(dataset, MODEL, config.width, config.steps, lambda: bar.advance(task))
        task = bar.add_task("the price of each method", total=config.epochs * epoch * len(METHODS))
        trainings = measure_prices(
            dataset,
            MODEL,
            config.width,
            batch_size=config.batch_size,
            rounds=config.epochs,
            advance=lambda: bar.advance(task),
        )
    scalings = trainings["SGS"].scalings
    picture = draw_scalings(scalings[0], scalings[-1], config.out / "scalings.png")
    heading = "\n[bold]{}[/bold]"
    console.print(heading.format("Scaled gradients learn what branches learn"))
    console.print(lemma_text(lemma), highlight=False)
    console.print(heading.format("What it costs"))
    console.print(price_table([training.price for training in trainings.values()]))
    console.print(
        f"Median epoch of {config.epochs}, interleaved; SGS with an update every {UPDATE_EVERY} epochs. Memory: "
        f"parameters, gradients, momentum and what the backward pass keeps for {config.batch_size} images.",
        highlight=False,
        style="dim",
    )
    console.print(heading.format("What it does"))
    console.print(f"The G of every layer after the first and the last update: {picture}", highlight=False)
    console.print(heading.format("Does it help?"))
    console.print(kept_text(json.loads(KEPT.read_text())), highlight=False)
    console.print(heading.format("Next"))
    console.print(NEXT, highlight=False)
    return picture


NEXT = """\
Your own training:    sgs = SpatialGradientScaling(model, optimizer, live=True)
The command line:     spatialgrad train --recipe pocket --method sgs
The paper's tables:   spatialgrad study list"""


def lemma_text(lemma: LemmaResult) -> str:
    """What the Lemma says, and how exactly it held."""
    return (
        f"Three networks trained for {lemma.steps} steps in double precision: one with four branches in every "
        "convolution, a plain one whose gradients are scaled by the sum of the branches' masks, and a plain one. "
        f"Loss of the first two: {lemma.first_loss:.3f} → {lemma.branched_loss:.3f} and {lemma.scaled_loss:.3f}. "
        f"Largest difference between their kernels: {lemma.distance:.0e}, which is rounding. "
        f"Without scaling it is {lemma.unscaled_distance:.2f} (of the largest weight of a kernel)."
    )


def price_table(prices: list[Price]) -> Table:
    """Time, parameters and memory of every method, beside plain training."""
    table = Table()
    for column in ("method", "epoch", "× plain", "parameters", "memory", "× plain", "after training"):
        table.add_column(column, justify="left" if column in ("method", "after training") else "right")
    plain = prices[0]
    for price in prices:
        table.add_row(
            price.method,
            f"{price.seconds:.2f} s",
            f"{price.ratio(plain):.2f}",
            f"{price.parameters:,}",
            f"{price.memory_bytes / 2**20:.0f} MiB",
            f"{price.memory_bytes / plain.memory_bytes:.2f}",
            "deploy" if price.method in ("plain", "SGS") else "merge",
        )
    return table


def kept_text(kept: dict[str, Any]) -> str:
    """The result of longer trainings, which is quoted and not measured here."""
    gain, low, high = (signed(kept[name]) for name in ("difference", "low", "high"))
    clear = kept["low"] > 0 or kept["high"] < 0
    return (
        "A minute cannot tell; longer trainings were measured earlier, and their runs are kept in the repository. "
        f"{kept['dataset']}, {kept['network']}, {kept['epochs']} epochs, {kept['seeds']} seeds: plain "
        f"{kept['plain']:.2f} %, scaled {kept['scaled']:.2f} %, "
        f"{gain} points (95 % interval {low} to {high}){'' if clear else ': no clear difference'}.\n"
        f"To measure it again: {kept['command']}"
    )
