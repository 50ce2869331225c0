"""A user's own comparison: several methods on one network and data set, as a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spatialgrad.data.files.archives import SUFFIXES, stem
from spatialgrad.data.registry import FOLDER, find_source, is_folder
from spatialgrad.studies.record import STUDIES, StudyRecord
from spatialgrad.studies.study import Arm, FigureName, Study, slug
from spatialgrad.train.config import METHOD_NAMES, MethodConfig, TrainConfig, digest_suffix
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.flags import check_name

COMPARE = "compare"
"""Name of the study."""
PLAIN, REPOPT, SEARCH = "baseline", "repopt", "repopt-search"
COMPARABLE = tuple(name for name in METHOD_NAMES if name != SEARCH and not name.startswith("lemma"))
"""The methods that can be compared. The search of repopt is trained before it, and a Lemma has no accuracy."""
SEARCH_SHARE = 3
"""The search of repopt takes one epoch in so many, as in the study `quantization`."""
LEAST_SEEDS = 2
"""Differences are paired by seed, and one pair says nothing about chance."""
FIGURES: tuple[FigureName, ...] = ("gains", "cost", "learning-curves", "overhead")


def compare_study(config: TrainConfig, methods: Sequence[str]) -> Study:
    """The study that compares methods.

    Args:
        config: The training; its method is replaced.
        methods: The reference is `baseline` if it is among them, else the first.

    Raises:
        ConfigError: If a method is unknown, cannot be compared, or there are fewer than two.
    """
    methods = list(dict.fromkeys(methods))
    _check(config, methods)
    arms: list[Arm] = []
    for method in methods:
        search = None
        if method == REPOPT and config.repopt.scales is None:
            search = Arm(group={}, label=SEARCH, config=_search_config(config), shown=False)
            arms.append(search)
        arms.append(
            Arm(
                group={},
                label=method,
                config=_config(config, method),
                reference=method == (PLAIN if PLAIN in methods else methods[0]),
                backbone=search.key if search else None,
                pays_for_backbone=search is not None,
                note=f"after a search of {search.config.budget.epochs} epochs, whose time counts." if search else "",
            )
        )
    scaled = any(method.startswith("sgs") for method in methods)
    looked_at: tuple[FigureName, ...] = ("scalings",) if scaled else ()
    return Study(
        name=COMPARE,
        title=f"{described(config)}: {', '.join(methods)}",
        shows="A comparison of your own",
        question="Which method gives the best network here, and what does it cost?",
        arms=lambda scale: tuple(arms),
        figures=(*FIGURES, *looked_at, *(() if config.task == "classification" else ("examples",))),
        metric=find_source(config.data.name).metric,
        num_seeds={"own": 3},
        differences={"own": measured_on(config)},
    )


def methods_in(record: StudyRecord) -> list[str]:
    """The methods that a folder already compares."""
    return [arm.label for arm in record.arms if arm.shown] if (record.name, record.scale) == (COMPARE, "own") else []


def default_folder(name: str, config: TrainConfig) -> Path:
    """The folder of a user's own study: its name, the data set, the network, and a digest of what else was changed."""
    dataset = config.data.name
    if is_folder(dataset):
        path = Path(dataset.removeprefix(FOLDER)).expanduser().resolve()
        dataset = stem(path) if path.name.endswith(SUFFIXES) else path.name
    width = "" if config.model.width == 1 else f"-w{config.model.width:g}"
    suffix = digest_suffix(config, {"model.name", "model.width", "data.name", "task", "seed"})
    return STUDIES / f"{slug(f'{name}-{dataset}-{config.model.name}{width}')}{suffix}"


def described(config: TrainConfig) -> str:
    """Network and data set: "vgg11 (width 0.25) on cifar100"."""
    width = "" if config.model.width == 1 else f" (width {config.model.width:g})"
    return f"{config.model.name}{width} on {config.data.name}"


def measured_on(config: TrainConfig) -> str:
    """Which images the metrics are measured on, and for how long every run trains."""
    epochs = f"{config.budget.epochs} epochs per run, evaluated after the last one"
    if config.data.validation:
        return (
            f"{epochs} on {100 * config.data.validation:g} % of the training images, which are held out; the test "
            "images are not used."
        )
    return (
        f"{epochs} on the test images of the data set. Settings that are chosen by these results need other images to "
        "be judged: hold some out with --data.validation."
    )


def _check(config: TrainConfig, methods: Sequence[str]) -> None:
    for method in methods:
        if method == SEARCH:
            raise ConfigError(f"--methods: {SEARCH} is trained before {REPOPT}; use --methods ... {REPOPT}")
        if method in METHOD_NAMES and method not in COMPARABLE:
            metric = find_source(config.data.name).metric
            raise ConfigError(f"--methods: {method} has no {metric} to compare; see spatialgrad study list")
        check_name("--methods", method, COMPARABLE)
    if len(methods) < 2:
        raise ConfigError(f"--methods must name at least 2 methods, got {' '.join(methods) or 'none'}")
    if REPOPT in methods and config.task != "classification":
        raise ConfigError(f"--methods: {REPOPT} can be compared for classification only, not for {config.task}")
    if REPOPT not in methods and config.repopt.scales is not None:
        raise ConfigError(f"--repopt.scales can be used only if {REPOPT} is one of --methods")


def _config(config: TrainConfig, method: str) -> TrainConfig:
    # Scales that were found earlier are for repopt alone: the others start as they always do.
    scales = config.repopt.scales if method == REPOPT else None
    return replace(
        config,
        method=MethodConfig(name=method),
        repopt=replace(config.repopt, scales=scales),
        seed=0,
        out=None,
    )


def _search_config(config: TrainConfig) -> TrainConfig:
    epochs = max(min(2, config.budget.epochs), config.budget.epochs // SEARCH_SHARE)
    return replace(_config(config, SEARCH), budget=replace(config.budget, epochs=epochs))
