"""Data sets by name. To add one, write a file with a `Source` in `sets/` and list it in `DATASETS`.

Configs check names and tasks here, so that this file imports no PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgrad.data.errors import DataError
from spatialgrad.data.source import Progress, Source, data_root
from spatialgrad.utils.text import UserCodeError, did_you_mean, find_object, is_object_name

if TYPE_CHECKING:
    from spatialgrad.data.classification import ImageDataset


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
    "shapes-mini": Entry("classification", "generated", "SHAPES"),
    "fashion-mnist": Entry("classification", "fashion_mnist"),
    "cifar10": Entry("classification", "cifar", "SOURCE10"),
    "cifar100": Entry("classification", "cifar", "SOURCE100"),
    "imagenet": Entry("classification", "imagenet"),
    "streets-mini": Entry("segmentation", "generated", "STREETS"),
    "camvid": Entry("segmentation", "camvid"),
    "cityscapes": Entry("segmentation", "cityscapes"),
    "figures-mini": Entry("pose", "generated", "FIGURES"),
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
    if is_folder(name) or is_object_name(name):
        return "classification"
    if name not in DATASETS:
        known = f"choose from {', '.join(DATASETS)}, folder:PATH and package.module:function"
        hint = did_you_mean(name, DATASETS, otherwise=known)
        raise ValueError(f"unknown data set {name!r}; {hint}")
    return DATASETS[name].task


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A line of `spatialgrad data list`."""

    name: str
    description: str
    place: Path
    """Where it is, or where it would be."""
    present: bool
    task: str
    """The task it is for: classification, segmentation or pose."""
    how_to_get: str
    """How to get it, each way on a line of its own; empty if it is present."""


def load_dataset(name: str, root: str | Path | None = None, *, image_size: int | None = None) -> ImageDataset[Any]:
    """Load a data set for classification by name.

    Args:
        name: One of `list_datasets()`, `folder:PATH` for class folders of image files, or `package.module:function`
            for a function that returns an `ImageDataset`.
        root: The folder of the data sets; see `data_root`.
        image_size: Height and width of the images in a batch, if not the default: images in memory are padded with
            black (from 28 to 32 for Fashion-MNIST), images in files are resized.

    Raises:
        ValueError: If no data set has this name, or if it is for another task.
        MissingDataError: If it was not found; the message explains how to get it.
        CorruptDataError: If one of its files is damaged; the message names it and explains how to fix it.
    """
    dataset: ImageDataset[Any] = load_for("classification", name, root)
    return dataset if image_size is None else dataset.with_image_size(image_size)


def load_for(task: str, name: str, root: str | Path | None = None) -> Any:
    """Load a data set for a task: whatever its `Source` reads.

    Raises:
        ValueError: If no data set has this name, or if it is for another task.
        MissingDataError: As for `load_dataset`.
        CorruptDataError: As for `load_dataset`.
    """
    if task_of(name) != task:
        fitting = ", ".join(names_for(task))
        raise ValueError(f"{name} is a data set for {task_of(name)}, not for {task}; those are {fitting}")
    return find_source(name).load(data_root(root))


def list_datasets(root: str | Path | None = None) -> list[DatasetInfo]:
    """All named data sets, whether they were found, and how to get those that were not."""
    folder_of_all = data_root(root)
    infos = []
    for name, entry in DATASETS.items():
        source = find_source(name)
        place = source.locate(folder_of_all)
        infos.append(
            DatasetInfo(
                name=name,
                description=source.description,
                place=place or source.places(folder_of_all)[0],
                present=place is not None,
                task=entry.task,
                how_to_get="" if place is not None else source.how_to_get(folder_of_all),
            )
        )
    return infos


def get_dataset_files(name: str, root: str | Path | None = None, *, progress: Progress = print) -> Path:
    """Download the files of a data set, unless they exist.

    Args:
        name: As for `load_dataset`. `folder:PATH` extracts a compressed archive of class folders.
        root: The folder of the data sets; see `data_root`.
        progress: Called with a line of text now and then.

    Returns:
        The file or folder of the data set.

    Raises:
        UnreachableError: If its host cannot be reached; the message explains the manual download.
        CorruptDataError: If the files are not the published ones.
    """
    return find_source(name).get(data_root(root), progress)


def find_source(name: str) -> Source:
    """The source of a data set, by its name or by `folder:PATH`, or `package.module:function`.

    Raises:
        ValueError: If no data set has this name; the message suggests the closest one.
    """
    task_of(name)
    if is_object_name(name) and not is_folder(name):
        return _users_source(name)
    module = import_module(f"spatialgrad.data.sets.{'folder' if is_folder(name) else DATASETS[name].module}")
    source: Source = module.source(name) if is_folder(name) else getattr(module, DATASETS[name].attribute)
    return source


def _users_source(name: str) -> Source:
    """A function of the user's that returns an `ImageDataset`, as `package.module:function`."""

    def read(place: Path) -> Any:
        from spatialgrad.data.classification import ImageDataset

        try:
            function = find_object(name)
        except UserCodeError as error:
            raise DataError(f"data set {name}: {error}") from error
        dataset = function() if callable(function) else function
        if not isinstance(dataset, ImageDataset):
            raise DataError(f"{name} must return an ImageDataset, not {type(dataset).__name__}")
        return dataset

    return Source(
        name=name,
        description=name,
        places=lambda root: [Path()],
        read=read,
        fetch=None,
        manual=lambda root: "it is made by your function",
        repair=lambda place: "",
    )
