"""The names of all data sets, and where each is defined: configs need no more, and a `Source` imports PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from spatialgrad.torch_utils.names import did_you_mean

FOLDER = "folder:"
"""Begins the name of class folders of image files; their path follows."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the `Source` of a data set is, and the task it is for."""

    task: str
    """classification, segmentation or pose."""
    module: str
    """Name of the file in `sets/`."""
    attribute: str = "SOURCE"
    """Name of the `Source` in it."""


DATASETS: dict[str, Entry] = {
    "fashion-mnist-mini": Entry("classification", "fashion_mnist", "MINI"),
    "shapes-mini": Entry("classification", "shapes_mini"),
    "fashion-mnist": Entry("classification", "fashion_mnist"),
    "cifar10": Entry("classification", "cifar", "SOURCE10"),
    "cifar100": Entry("classification", "cifar", "SOURCE100"),
    "imagenet": Entry("classification", "imagenet"),
    "streets-mini": Entry("segmentation", "streets_mini"),
    "camvid": Entry("segmentation", "camvid"),
    "cityscapes": Entry("segmentation", "cityscapes"),
    "figures-mini": Entry("pose", "figures_mini"),
    "lspet": Entry("pose", "lspet"),
    "mpii": Entry("pose", "mpii"),
}
"""In the order of `spatialgrad data list`."""


def names_for(task: str) -> list[str]:
    """The data sets for a task."""
    return [name for name, entry in DATASETS.items() if entry.task == task]


def is_folder(name: str) -> bool:
    """Whether a name is `folder:PATH`."""
    return name.startswith(FOLDER) and name != FOLDER


def task_of(name: str) -> str:
    """The task that a data set is for.

    Raises:
        ValueError: If no data set has this name; the message suggests the closest one.
    """
    if is_folder(name):
        return "classification"
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS, otherwise=f"choose from {', '.join(DATASETS)} and folder:PATH")
        raise ValueError(f"unknown data set {name!r}; {hint}")
    return DATASETS[name].task
