"""Class folders of image files: `train/<class>/…` and `val/<class>/…` as in ImageNet, or just `<class>/…`."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path, PurePosixPath

import torch

from spatialgrad.data.augment import IMAGENET
from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.archives import extract, is_archive, stem
from spatialgrad.data.files.images import SUFFIXES
from spatialgrad.data.files.listing import FileList, find_files, hidden
from spatialgrad.data.registry import FOLDER, Progress, Source, get_command
from spatialgrad.data.splits import FileSplit, stratified_indices

logger = logging.getLogger(__name__)

TRAIN = "train"
TEST_NAMES = ("val", "valid", "validation", "test")
"""Names of the folder of test images; `test` last, because ImageNet's has no classes."""
HELD_OUT = 0.2
"""Share of the images that is held out for testing if there is no folder of test images."""
LAYOUT = "<class>/, or in train/<class>/ and val/<class>/"


def read(place: Path, *, name: str | None = None, title: str | None = None) -> ImageDataset[FileSplit]:
    """Read class folders; no image is opened yet.

    Args:
        place: A folder or an uncompressed tar archive with `train/<class>/…` and `val/<class>/…`, or with `<class>/…`,
            from which test images are then held out. All may be in the only folder in it.
        name: Name of the data set; by default `folder:` and the place.
        title: Its name in reports, before the number of classes; by default the last part of the place.
    """
    tree = _Tree(place)
    # Folders of images without class folders are not splits: ImageNet's `test`, or a class that is called `train`.
    splits = {parts[0] for parts in tree.parts if len(parts) > 2}
    has_splits = TRAIN in splits
    test_name = next((each for each in TEST_NAMES if has_splits and each in splits), None)
    train, class_names = tree.classes_below(TRAIN if has_splits else None)
    description = f"{title or place.name.removesuffix('.tar')}, {len(class_names)} classes"
    if test_name is not None:
        test, _ = tree.classes_below(test_name, class_names)
    else:
        train, test = _hold_out(train, class_names, place)
        description += f", {HELD_OUT:.0%} of the images held out for testing"
        logger.warning(
            "%s has no folder of test images (val/<class>/): %d of its %d images are held out, always the same ones",
            *(place, len(test), len(test) + len(train)),
        )
    tree.report_ignored()
    return ImageDataset(
        name=name or f"{FOLDER}{place}",
        description=description,
        train=train,
        test=test,
        class_names=class_names,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        image_size=224,
        augmentation=IMAGENET,
    )


def _hold_out(split: FileSplit, class_names: tuple[str, ...], place: Path) -> tuple[FileSplit, FileSplit]:
    """Divide images into training and test images."""
    kept, held_out = stratified_indices(split.labels, HELD_OUT, seed=0)
    train, test = split.select(kept), split.select(held_out)
    counts = torch.bincount(train.labels, minlength=len(class_names)).tolist()
    if not len(test) or not all(counts):
        raise CorruptDataError(
            f"{place} has too few images of {class_names[counts.index(min(counts))]} to hold out {HELD_OUT:.0%} of "
            f"them for testing: add some, or put test images into val/<class>/"
        )
    return train, test


class _Tree:
    """The files of a place, with the parts of their paths below its only folder, if there is only one."""

    def __init__(self, place: Path) -> None:
        self.place = place
        folders = _folders_in(place)
        # A single folder of images is a class, and one of folders contains the data set.
        if (
            len(folders) == 1
            and folders[0] != TRAIN
            and any(child.is_dir() for child in (place / folders[0]).iterdir())
        ):
            self.place = place / folders[0]
        self.files: FileList = find_files(self.place, ["*/*", "*/*/**"])
        paths = [name.split("/") for name in self.files.relative_names()]
        tops = {path[0] for path in paths}
        in_one = place.is_file() and len(tops) == 1 and TRAIN not in tops and any(len(path) > 2 for path in paths)
        self.parts = [path[1:] for path in paths] if in_one else paths
        self.ignored: Counter[str] = Counter()
        """Number of files that are no images, by their endings."""

    def classes_below(
        self, split: str | None, known: tuple[str, ...] | None = None
    ) -> tuple[FileSplit, tuple[str, ...]]:
        """The images in the class folders of a split, and the names of the classes.

        Args:
            split: Name of its folder; None if the class folders are not divided into splits.
            known: The classes of the training images.
        """
        depth = 0 if split is None else 1
        images: list[tuple[str, str, int]] = []
        # Also those that are empty; an archive does not list them.
        folders = set(_folders_in(self.place / (split or "")))
        for index, parts in enumerate(self.parts):
            if len(parts) < depth + 2 or (split is not None and parts[0] != split):
                continue
            folders.add(parts[depth])
            ending = PurePosixPath(parts[-1]).suffix.lower()
            if ending in SUFFIXES:
                images.append((parts[depth], "/".join(parts), index))
            else:
                self.ignored[ending or "none"] += 1
        found = {class_name for class_name, *_ in images}
        self._check(split, folders, found, known)
        names = known or tuple(sorted(found))
        # By class and name, which is the same order on every file system.
        images.sort()
        numbers = {class_name: number for number, class_name in enumerate(names)}
        labels = torch.tensor([numbers[class_name] for class_name, *_ in images], dtype=torch.int64)
        return FileSplit(self.files.select([index for *_, index in images]), labels), names

    def report_ignored(self) -> None:
        """Log one line about the files that are no images."""
        if self.ignored:
            endings = ", ".join(f"{count} × {ending}" for ending, count in self.ignored.most_common(5))
            logger.warning("%s: %d files are not read as images (%s)", self.place, self.ignored.total(), endings)

    def _check(self, split: str | None, folders: set[str], found: set[str], known: tuple[str, ...] | None) -> None:
        """Raise CorruptDataError, with a remedy, if the class folders make no sense."""
        where, endings = self.place / (split or ""), ", ".join(SUFFIXES)
        if not found:
            message = f" contains no images. They must be in {LAYOUT}, in files that end in {endings}"
        elif empty := sorted(folders - found):
            message = (
                f"/{empty[0]} contains no images ({len(empty) - 1} more folders like it): add some that end in "
                f"{endings}, or remove the folder"
            )
        elif unknown := sorted(found - set(known or found)):
            message = f"/{unknown[0]} is a class that {TRAIN}/ does not have: both must have the same class folders"
        elif len(known or found) < 2:
            message = f" contains the only class {min(found)}: put images of at least two classes into {LAYOUT}"
        elif split is None and len(shared := self._same_folders()) > 1:
            message = (
                f" contains {' and '.join(sorted(found)[:2])}, each with the folders {', '.join(shared[:3])}: name "
                "them train/ and val/ if they are splits, or keep the images of a class in one folder"
            )
        else:
            return
        raise CorruptDataError(f"{where}{message}")

    def _same_folders(self) -> list[str]:
        """Names of folders that all tops contain, if they contain no images of their own: the tops are then splits."""
        below: dict[str, set[str]] = {}
        for parts in self.parts:
            if len(parts) > 1:
                below.setdefault(parts[0], set()).add(parts[1] if len(parts) > 2 else "")
        shared = set[str].intersection(*below.values())
        return [] if any("" in folders for folders in below.values()) else sorted(shared)


def _folders_in(place: Path) -> list[str]:
    return (
        [child.name for child in place.iterdir() if child.is_dir() and not hidden(child.name)] if place.is_dir() else []
    )


def source(name: str) -> Source:
    """The source of `folder:PATH`, where PATH is a folder or an archive."""
    path = Path(name.removeprefix(FOLDER)).expanduser()
    compressed = is_archive(path) and not path.name.endswith(".tar")
    # A relative path may also be one below the folder of the data sets; an absolute one stays as it is.
    places = [stem(path)] if compressed else [path.absolute(), path]

    def missing(root: Path) -> str:
        if compressed:
            return (
                f"{path} is compressed, and {root / stem(path)} does not exist.\nExtract it: {get_command(name, root)}"
            )
        looked_at = " and ".join(dict.fromkeys(str(root / place) for place in places))
        return (
            f"{looked_at} not found, the PATH of --dataset {name}.\n"
            f"It must be a folder or a tar archive with images in {LAYOUT}."
        )

    def fetch(root: Path, progress: Progress) -> Path:
        if not compressed:
            raise MissingDataError(missing(root))
        progress(f"extracting {path}")
        extract(path, root / stem(path))
        return root / stem(path)

    return Source(
        name=name,
        description="class folders of image files",
        places=places,
        read=lambda place: read(place, name=name),
        fetch=fetch,
        missing=missing,
    )
