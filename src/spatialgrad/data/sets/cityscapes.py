"""Cityscapes: street scenes of 50 cities at 2048×1024, 19 classes.

Cordts et al. 2016, "The Cityscapes Dataset for Semantic Urban Scene Understanding", https://arxiv.org/abs/1604.01685;
https://www.cityscapes-dataset.com. The layout is that of its packages `leftImg8bit_trainvaltest.zip` and
`gtFine_trainvaltest.zip`, extracted into one folder. Masks contain the label ids 0 to 33 of the authors' scripts
(`*_gtFine_labelIds.png`), of which 19 are evaluated; if they are missing, masks that those scripts have converted to
train ids (`*_gtFine_labelTrainIds.png`) are read instead.

Networks are trained on `train` and tested on `val`: the labels of `test` are not public.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.listing import FileList, find_files
from spatialgrad.data.registry import Source
from spatialgrad.data.segmentation import IGNORE, MaskSplit, SegmentationDataset, label_table, mask_split

FOLDER = "cityscapes"
CROP = (713, 713)
CLASSES = {
    "road": (128, 64, 128),
    "sidewalk": (244, 35, 232),
    "building": (70, 70, 70),
    "wall": (102, 102, 156),
    "fence": (190, 153, 153),
    "pole": (153, 153, 153),
    "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0),
    "vegetation": (107, 142, 35),
    "terrain": (152, 251, 152),
    "sky": (70, 130, 180),
    "person": (220, 20, 60),
    "rider": (255, 0, 0),
    "car": (0, 0, 142),
    "truck": (0, 0, 70),
    "bus": (0, 60, 100),
    "train": (0, 80, 100),
    "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}
LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The label id of each class."""
NUM_LABEL_IDS = 34
# The label id -1 of licence plates is 255 in 8 bits.
TABLES = {
    "labelIds": label_table(dict(zip(LABEL_IDS, range(19), strict=True)), ignored=(*range(NUM_LABEL_IDS), IGNORE)),
    "labelTrainIds": label_table({number: number for number in range(19)}),
}
_IMAGE, _MASK = "_leftImg8bit.png", "_gtFine_"


def read(place: Path) -> SegmentationDataset:
    """Find the images and masks; only the first of each split is decoded, for its size."""
    splits = ("train", "val")
    patterns = [f"leftImg8bit/{split}/*/*{_IMAGE}" for split in splits]
    patterns += [f"gtFine/{split}/*/*{_MASK}{kind}.png" for split in splits for kind in TABLES]
    files = find_files(place, patterns)
    train, test = (_read_split(files, split) for split in splits)
    if test.size != train.size:
        raise CorruptDataError(f"{test.name(0)} has a different size than {train.name(0)}")
    published = (len(train), len(test)) == (2975, 500)
    return SegmentationDataset(
        name="cityscapes",
        description="Cityscapes" if published else f"Cityscapes, {len(train):,}/{len(test):,} subset",
        train=train,
        test=test,
        classes=CLASSES,
        image_size=train.size,
        crop_size=CROP,
    )


def _read_split(files: FileList, split: str) -> MaskSplit:
    images, masks = _by_frame(files, split)
    if not images:
        raise CorruptDataError(f"{files.root} has no images leftImg8bit/{split}/<city>/*{_IMAGE}")
    chosen, tables = [], []
    for frame, index in images.items():
        kind = next((kind for kind in TABLES if (frame, kind) in masks), None)
        if kind is None:
            raise CorruptDataError(
                f"{files.name(index)} has no mask gtFine/{split}/{frame}{_MASK}labelIds.png (or labelTrainIds.png)"
            )
        chosen.append(masks[frame, kind])
        tables.append(TABLES[kind])
    unpaired = next((index for (frame, _), index in masks.items() if frame not in images), None)
    if unpaired is not None:
        raise CorruptDataError(f"{files.name(unpaired)} has no image in leftImg8bit/{split}/")
    return mask_split(files, list(images.values()), chosen, tables)


def _by_frame(files: FileList, split: str) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Indices of a split's images by city and frame, and of its masks by city and frame and kind of labels."""
    images: dict[str, int] = {}
    masks: dict[tuple[str, str], int] = {}
    for index, path in enumerate(map(PurePosixPath, files.relative_names())):
        if path.parts[-3] != split:
            continue
        if path.name.endswith(_IMAGE):
            images[f"{path.parent.name}/{path.name.removesuffix(_IMAGE)}"] = index
        else:
            frame, _, kind = path.stem.rpartition(_MASK)
            masks[f"{path.parent.name}/{frame}", kind] = index
    return images, masks


SOURCE = Source(
    name="cityscapes",
    description="2,975 + 500 street scenes of 2048×1024, 19 pixel classes",
    places=[FOLDER, f"{FOLDER}.tar"],
    read=read,
    manual=(
        "register at https://www.cityscapes-dataset.com and extract leftImg8bit_trainvaltest.zip and "
        f"gtFine_trainvaltest.zip into {{root}}/{FOLDER}"
    ),
    metric="miou",
)
