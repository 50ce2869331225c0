"""Table 5: nine optimizers; beyond the paper, scaling the update instead of the gradient for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spatialgrad.studies.scales import (
    APPENDIX,
    DESK_VGG,
    POCKET,
    desk_text,
    held_out,
    published_for,
    shortened,
    sized,
    titled,
)
from spatialgrad.studies.study import Arm, Published, Scale, Search, Study, slug
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.optimizers import DEFAULT_LR

ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {"optimizer": {"name": "sgd", "momentum": 0.0}},
    "SGD + Momentum": {"optimizer": {"name": "sgd", "momentum": 0.9}},
    "Adadelta": {"optimizer": {"name": "adadelta"}},
    "Adagrad": {"optimizer": {"name": "adagrad"}},
    "Adagrad*": {"optimizer": {"name": "adagrad"}, "scaling": {"apply": "update"}},
    "Adam": {"optimizer": {"name": "adam"}},
    "Adamax": {"optimizer": {"name": "adamax"}},
    "NAdam": {"optimizer": {"name": "nadam"}},
    "RAdam": {"optimizer": {"name": "radam"}},
}
"""The nine rows of the table, by their names in it, and the fields of a config that each of them sets."""
MODELS = {"VGG-11": "vgg11", "ResNet-18": "resnet18"}
# The printed means and deviations: without SGS, then with SGS.
PUBLISHED: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "VGG-11": {
        "SGD": (68.3, 0.1, 70.7, 0.1),
        "SGD + Momentum": (71.0, 0.1, 73.2, 0.1),
        "Adadelta": (69.2, 0.2, 70.8, 0.1),
        "Adagrad": (66.2, 0.1, 66.2, 0.2),
        "Adagrad*": (66.2, 0.1, 67.0, 0.1),
        "Adam": (68.8, 0.2, 70.4, 0.2),
        "Adamax": (68.4, 0.2, 69.9, 0.1),
        "NAdam": (69.2, 0.1, 70.2, 0.1),
        "RAdam": (69.8, 0.1, 71.1, 0.1),
    },
    "ResNet-18": {
        "SGD": (75.8, 0.2, 76.3, 0.1),
        "SGD + Momentum": (77.6, 0.1, 78.5, 0.1),
        "Adadelta": (75.8, 0.2, 76.4, 0.1),
        "Adagrad": (72.2, 0.2, 72.3, 0.2),
        "Adagrad*": (72.2, 0.2, 72.9, 0.1),
        "Adam": (75.1, 0.1, 76.2, 0.1),
        "Adamax": (74.9, 0.1, 75.8, 0.1),
        "NAdam": (75.6, 0.1, 76.0, 0.1),
        "RAdam": (76.2, 0.2, 76.8, 0.1),
    },
}
LR_FACTORS = (0.1, 0.3, 1.0, 3.0)
"""The searched learning rates, as multiples of the default."""
WEIGHT_DECAYS = (5e-5, 5e-4, 5e-3)
STARRED_NOTE = "SGS scales the optimizer's update, not the gradient."
BEYOND_NOTE = "Beyond the paper, which does so for Adagrad only: SGS scales the optimizer's update."


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Nine rows for each of two networks; the third arm of a row is not in the paper.

    Adagrad and Adagrad* share a baseline, and the update arm of the former is the SGS arm of the latter: equal configs
    are trained once.
    """
    found: list[Arm] = []
    for shown, model in MODELS.items():
        for row in ROWS:
            plain = row.rstrip("*")
            group, measured = {"Model": shown, "Optimizer": row}, published_for(scale, f"{shown} on CIFAR-100")
            mean, std, sgs_mean, sgs_std = PUBLISHED[shown][row]
            tuned_by = _search_name(model, plain) if scale == "paper" else None
            sgs = with_row(_config(scale, model, "sgs"), row)
            update = replace(sgs, scaling=replace(sgs.scaling, apply="update"))
            found += [
                Arm(
                    group=group,
                    label="No SGS",
                    config=with_row(_config(scale, model, "baseline"), plain),
                    reference=True,
                    published=(Published(mean=mean, std=std),),
                    published_for=measured,
                    tuned_by=tuned_by,
                ),
                Arm(
                    group=group,
                    label="SGS (ours)",
                    config=sgs,
                    published=(Published(mean=sgs_mean, std=sgs_std),),
                    published_for=measured,
                    tuned_by=tuned_by,
                    note=STARRED_NOTE if row != plain else "",
                ),
            ]
            if row == plain:
                found.append(
                    Arm(group=group, label="SGS on the update", config=update, tuned_by=tuned_by, note=BEYOND_NOTE)
                )
    return tuple(found)


def searches(scale: Scale) -> tuple[Search, ...]:
    """Learning rate and weight decay of each network and optimizer; at paper scale only."""
    if scale != "paper":
        return ()
    found = []
    for model in MODELS.values():
        for row in ROWS:
            if row.endswith("*"):
                continue
            config = with_row(_config(scale, model, "baseline"), row)
            usual = DEFAULT_LR[config.optimizer.name]
            grid = {
                "optimizer.lr": tuple(float(f"{usual * factor:.3g}") for factor in LR_FACTORS),
                "optimizer.weight_decay": WEIGHT_DECAYS,
            }
            found.append(Search(name=_search_name(model, row), config=held_out(config), grid=grid))
    return tuple(found)


def with_row(config: TrainConfig, row: str) -> TrainConfig:
    """A config with the optimizer of one row, at its default learning rate.

    Args:
        config: All other settings.
        row: A name of `ROWS`.
    """
    changes = ROWS[row]
    return replace(
        config,
        optimizer=replace(config.optimizer, lr=None, **changes["optimizer"]),
        scaling=replace(config.scaling, **{"apply": "gradient", **changes.get("scaling", {})}),
    )


def _search_name(model: str, row: str) -> str:
    return f"{model}-{slug(row)}"


def _config(scale: Scale, model: str, method: str) -> TrainConfig:
    config = sized(scale, model, method)
    return shortened(config, epochs=2, limit=1_000) if scale == "pocket" else config


OPTIMIZERS = Study(
    name="optimizers",
    title=titled("Nine optimizers"),
    shows="Table 5",
    question="Does scaling help adaptive optimizers as well, and should it act on the gradient or on the update?",
    arms=arms,
    searches=searches,
    layout="columns",
    figures=("learning-curves", "overhead"),
    published_seeds=3,
    num_seeds={"paper": 3, "desk": 1, "pocket": 1},
    differences={
        "paper": f"{APPENDIX} The paper tuned the learning rate and weight decay of each optimizer on 20 % of the "
        "training images and prints neither the grid nor the values found, nor whether each was tuned with SGS. Here, "
        "4 learning rates around the default and 3 weight decays are searched, without SGS.",
        "desk": f"{DESK_VGG} {desk_text(lr='default learning rates')} The defaults are 0.1 for SGD and PyTorch's for "
        "all others; nothing is searched.",
        "pocket": f"{POCKET} Default learning rates; nothing is searched.",
    },
    times={"paper": "about 280 GPU hours", "desk": "10 hours on 2 cores", "pocket": "4 minutes on 2 cores"},
)
