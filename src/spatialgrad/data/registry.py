"""Data sets by name. To add one, write a file with a `Source` in `sets/` and list it in `DATASETS`.

Configs check names and tasks here, so that this file imports no PyTorch.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spatialgrad.data.errors import DataError, MissingDataError, UnreachableError
from spatialgrad.utils.text import UserCodeError, did_you_mean, find_object, is_object_name

if TYPE_CHECKING:
    from spatialgrad.data.classification import ImageDataset


FOLDER = "folder:"
"""Begins the name of class folders of image files; their path follows."""


class Entry(NamedTuple):
    """Where the `Source` of a data set is, and the task it is for."""

    task: str
    """classification, segmentation or pose."""
    module: str
    """Name of the file in `sets/`."""
    attribute: str = "SOURCE"
    """Name of the `Source` in it."""


DATASETS = {
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

Progress = Callable[[str], None]
"""Called with lines of text that tell what is done, such as `print`."""


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data sets: the argument, else $SPATIALGRAD_DATA, else ~/.cache/spatialgrad."""
    return Path(root or os.environ.get("SPATIALGRAD_DATA") or "~/.cache/spatialgrad").expanduser()


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set is stored, how it is read and how it is downloaded."""

    name: str
    description: str
    places: Sequence[str | Path]
    """The files or folders to look for, in order of preference, relative to the data root."""
    read: Callable[[Path], Any]
    """Given one of the places: reads the data set, an `ImageDataset` for classification."""
    fetch: Callable[[Path, Progress], Path] | None = None
    """Given the data root: downloads or extracts it and returns its place. None if it cannot be downloaded."""
    manual: str = ""
    """Instructions for a manual download, with `{root}` for the data root; empty if errors say what to do."""
    metric: str = "accuracy"
    """The metric that a training on it is judged by."""
    missing: Callable[[Path], str] | None = None
    """Given the data root: what to say if it was not found; by default where it was looked for and how to get it."""

    def candidates(self, root: Path) -> list[Path]:
        """All its places."""
        return [root / place for place in self.places]

    def locate(self, root: Path) -> Path | None:
        """The first of its places that exists."""
        return next((place for place in self.candidates(root) if place.exists()), None)

    def load(self, root: Path) -> Any:
        """Read it from the first of its places that exists."""
        place = self.locate(root)
        if place is None:
            raise MissingDataError(self._missing(root))
        try:
            return self.read(place)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read ({error})") from error
        except DataError as error:
            if not self.manual:
                raise
            again = f"remove {place} and run `{get_command(self.name, root)}`"
            remedy = again if self.fetch else f"get the data again: {self._by_hand(root)}"
            raise type(error)(f"{error}.\nTo fix it: {remedy}") from error

    def get(self, root: Path, progress: Progress) -> Path:
        """Download it, unless it exists already."""
        place = self.locate(root)
        if place is not None:
            progress(f"{self.name} already exists: {place}")
            return place
        manual = f"Manual download: {self._by_hand(root)}"
        if self.fetch is None:
            raise UnreachableError(f"{self.name} cannot be downloaded automatically.\n{manual}")
        try:
            place = self.fetch(root, progress)
        except UnreachableError as error:
            raise UnreachableError(f"{error}.\n{manual}") from error
        except OSError as error:
            raise DataError(f"{self.name} cannot be written to {root} ({error})") from error
        progress(f"{self.name} is in {place}")
        return place

    def how_to_get(self, root: Path) -> str:
        """Instructions, each on a line of its own: the command that downloads it, if there is one, and by hand."""
        lines = [f"Download: {get_command(self.name, root)}"] if self.fetch else []
        return "\n".join([*lines, f"Manual download: {self._by_hand(root)}"])

    def _by_hand(self, root: Path) -> str:
        return self.manual.replace("{root}", str(root))

    def _missing(self, root: Path) -> str:
        if self.missing is not None:
            return self.missing(root)
        return (
            f"{self.name} not found in {', '.join(map(str, self.candidates(root)))}.\n"
            f"If it is in another folder: set $SPATIALGRAD_DATA or --data.root.\n{self.how_to_get(root)}"
        )


def get_command(name: str, root: Path) -> str:
    """The command that downloads a data set into a folder."""
    option = "" if root == data_root() else f" --data.root {shlex.quote(str(root))}"
    return f"spatialgrad data get {shlex.quote(name)}{option}"


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
                place=place or source.candidates(folder_of_all)[0],
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

    # It has no file: any folder that exists will do.
    return Source(name=name, description=name, places=[Path.cwd()], read=read)
