"""ImageNet (ILSVRC 2012): 1,281,167 training and 50,000 validation images in a thousand classes.

Russakovsky et al. 2015, "ImageNet Large Scale Visual Recognition Challenge", https://arxiv.org/abs/1409.0575.
It may not be redistributed: users download it from image-net.org, and its archives are extracted here.
"""

from __future__ import annotations

import re
from pathlib import Path

from spatialgrad.data.classification import FolderSplit, ImageDataset
from spatialgrad.data.errors import CorruptDataError, UnreachableError
from spatialgrad.data.files.archives import complete_or_nothing, extract_member, open_inner_tar, open_tar, read_files
from spatialgrad.data.files.download import Progress
from spatialgrad.data.files.mat import read_mat
from spatialgrad.data.sets import folder
from spatialgrad.data.source import Source

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
FOLDER = "imagenet"
CLASS_NAME = re.compile(r"n\d{8}", re.ASCII)


def read(place: Path) -> ImageDataset[FolderSplit]:
    """Read the class folders."""
    return folder.read(place, name="imagenet", title="ImageNet")


def fetch(root: Path, progress: Progress) -> Path:
    """Extract the three archives that registered users download from image-net.org."""
    if absent := [name for name in (TRAIN, VAL, DEVKIT) if not (root / name).is_file()]:
        raise UnreachableError(
            f"ImageNet is available to registered users of image-net.org only, and {root} has no {', '.join(absent)}"
        )
    progress(f"extracting {TRAIN}, {VAL} and {DEVKIT}; this takes a while")
    extract_all(root, root / FOLDER)
    return root / FOLDER


def extract_all(root: Path, target: Path, *, num_classes: int = 1000, num_val: int = 50_000) -> None:
    """Extract the three archives in `root` into class folders, completely or not at all."""
    val_classes = _read_devkit(root / DEVKIT)
    if len(val_classes) != num_val:
        raise CorruptDataError(f"{root / DEVKIT} has the classes of {len(val_classes):,} images, not {num_val:,}")
    with complete_or_nothing(target) as temporary:
        classes = _extract_train(root / TRAIN, temporary / "train")
        if len(classes) != num_classes or classes != set(val_classes):
            raise CorruptDataError(f"{root / TRAIN} has {len(classes)} classes, not the {num_classes} of {DEVKIT}")
        count = _extract_val(root / VAL, temporary / "val", val_classes)
        if count != num_val:
            raise CorruptDataError(f"{root / VAL} has {count:,} images, not {num_val:,}")


def _extract_train(archive: Path, target: Path) -> set[str]:
    """Extract an archive that contains an archive for each class; returns the classes."""
    classes = set()
    with open_tar(archive) as outer:
        for member in outer:
            class_name = member.name.removesuffix(".tar")
            content = outer.extractfile(member) if member.isreg() else None
            if content is None or not CLASS_NAME.fullmatch(class_name):
                raise CorruptDataError(f"{archive} contains {member.name!r}, which is not the archive of a class")
            classes.add(class_name)
            with open_inner_tar(content) as inner:
                for image in inner:
                    extract_member(inner, image, target / class_name, archive)
    return classes


def _extract_val(archive: Path, target: Path, classes: list[str]) -> int:
    """Extract the validation images, numbered from ILSVRC2012_val_00000001.JPEG; returns how many there are."""
    count = 0
    with open_tar(archive) as tar:
        for image in tar:
            number = Path(image.name).stem.rsplit("_", 1)[-1]
            if not number.isdecimal() or not 1 <= int(number) <= len(classes):
                raise CorruptDataError(f"{archive} contains {image.name!r}, which is not one of the validation images")
            extract_member(tar, image, target / classes[int(number) - 1], archive)
            count += 1
    return count


def _read_devkit(archive: Path) -> list[str]:
    """The WordNet name of the class of each validation image."""
    truth, meta = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
    contents = read_files(archive, {truth, meta})
    try:
        synsets = read_mat(contents[meta], "synsets", f"{archive}/{meta}", squeeze_me=True)
        names = {int(number): str(name) for number, name in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        classes = [names[int(line)] for line in contents[truth].split()]
    except (CorruptDataError, ImportError):
        raise
    except Exception as error:  # a file with another structure raises nearly anything
        raise CorruptDataError(f"{archive} cannot be read ({error!r})") from error
    # The classes become folder names.
    if strange := next((name for name in classes if not CLASS_NAME.fullmatch(name)), None):
        raise CorruptDataError(f"{archive} contains the class {strange!r}, which is not a WordNet name")
    return classes


SOURCE = Source(
    name="imagenet",
    description="1,281,167 + 50,000 colour images, 1000 classes, as class folders",
    places=lambda root: [root / FOLDER, root / "ILSVRC2012"],
    read=read,
    fetch=fetch,
    manual=lambda root: (
        f"register at https://image-net.org, put {TRAIN}, {VAL} and {DEVKIT} into {root} and run this again; "
        f"or put class folders into {root / FOLDER}/train/<class>/ and {root / FOLDER}/val/<class>/"
    ),
)
