"""Class folders of image files, the usual layout of ImageNet: `train/<class>/…` and `val/<class>/…`."""

from __future__ import annotations

from pathlib import Path

import torch

from spatialgrad.data.augment import IMAGENET
from spatialgrad.data.classification import FolderSplit, ImageDataset
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.archives import extract, is_archive, stem
from spatialgrad.data.files.download import Progress
from spatialgrad.data.files.listing import IMAGE_SUFFIXES, FileList, find_files
from spatialgrad.data.names import FOLDER
from spatialgrad.data.source import Source, get_command

TEST_NAMES = ("val", "valid", "validation", "test")
"""Names of the folder of test images; `test` last, because ImageNet's has no classes."""


def read(place: Path, *, name: str | None = None, title: str | None = None) -> ImageDataset[FolderSplit]:
    """Read class folders; no image is opened yet.

    Args:
        place: A folder or an uncompressed tar archive with `train/<class>/…` and `val/<class>/…`, which may both be in
            the only folder in it.
        name: Name of the data set; by default `folder:` and the place.
        title: Its name in reports, before the number of classes; by default the last part of the place.
    """
    files, entries = _find_images(place)
    splits = {split for split, *_ in entries}
    test_name = next((candidate for candidate in TEST_NAMES if candidate in splits), None)
    if "train" not in splits or test_name is None:
        raise CorruptDataError(
            f"{place} does not contain images in both train/<class>/ and val/<class>/ "
            f"(or {', '.join(f'{candidate}/' for candidate in TEST_NAMES[1:])})"
        )
    class_names = tuple(sorted({class_name for split, class_name, *_ in entries if split == "train"}))
    numbers = {class_name: number for number, class_name in enumerate(class_names)}

    def split_of(wanted: str) -> FolderSplit:
        chosen = [entry for entry in entries if entry[0] == wanted]
        for _, class_name, _, index in chosen:
            if class_name not in numbers:
                raise CorruptDataError(f"{files.name(index)} is of the class {class_name}, which train/ does not have")
        labels = torch.tensor([numbers[class_name] for _, class_name, *_ in chosen], dtype=torch.int64)
        return FolderSplit(files.select([index for *_, index in chosen]), labels)

    return ImageDataset(
        name=name or f"{FOLDER}{place}",
        description=f"{title or place.name.removesuffix('.tar')}, {len(class_names)} classes",
        train=split_of("train"),
        test=split_of(test_name),
        class_names=class_names,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        image_size=224,
        augmentation=IMAGENET,
    )


def _find_images(place: Path) -> tuple[FileList, list[tuple[str, str, str, int]]]:
    """The files of a tree, and split, class, name and index of each image, sorted in this order on any file system."""
    if place.is_dir():
        folders = [child for child in place.iterdir() if child.is_dir()]
        place = folders[0] if len(folders) == 1 and folders[0].name != "train" else place
    files = find_files(place, ["*/*/**"])
    names = files.relative_names()
    tops = {name.split("/", 1)[0] for name in names}
    above = 1 if place.is_file() and len(tops) == 1 and "train" not in tops else 0
    entries = []
    for index, name in enumerate(names):
        split, class_name, *rest = name.split("/")[above:]
        if rest and name.lower().endswith(IMAGE_SUFFIXES):
            entries.append((split, class_name, name, index))
    return files, sorted(entries)


def source(name: str) -> Source:
    """The source of `folder:PATH`, where PATH is a folder or an archive."""
    path = Path(name.removeprefix(FOLDER)).expanduser()
    readable_as_it_is = path.name.endswith(".tar") or not is_archive(path)

    def extracted(root: Path) -> Path:
        return root / stem(path)

    def places(root: Path) -> list[Path]:
        if readable_as_it_is:
            # A relative path may also be one below the folder of the data sets; an absolute one stays as it is.
            return [path, root / path]
        return [extracted(root)]

    def missing(root: Path) -> str:
        if not readable_as_it_is:
            return f"{path} is compressed, and {extracted(root)} does not exist.\nExtract it: {get_command(name, root)}"
        return (
            f"{' and '.join(dict.fromkeys(map(str, (path.absolute(), root / path))))} not found, the PATH of --dataset "
            f"{name}.\nIt must be a folder or a tar archive with images in train/<class>/ and val/<class>/."
        )

    def fetch(root: Path, progress: Progress) -> Path:
        if not is_archive(path):
            raise MissingDataError(missing(root))
        progress(f"extracting {path}")
        extract(path, extracted(root))
        return extracted(root)

    return Source(
        name=name,
        description="class folders of image files",
        places=places,
        read=lambda place: read(place, name=name),
        fetch=fetch,
        manual=lambda root: f"put images into {path}/train/<class>/ and {path}/val/<class>/",
        repair=lambda place: f"replace the file named above in {place}",
        missing=missing,
    )
