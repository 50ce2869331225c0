"""Small data sets for segmentation in the published layouts."""

import io

import numpy as np
from PIL import Image

from spatialgrad.data.sets.cityscapes import LABEL_IDS

HEIGHT, WIDTH = 40, 56


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def scene(seed, labels, height=HEIGHT, width=WIDTH):
    """An image whose colours tell the labels of its blocks, and the labels."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, len(labels), (height // 8, width // 8))
    mask = np.asarray(labels, dtype=np.uint8)[blocks].repeat(8, 0).repeat(8, 1)
    noise = generator.integers(0, 20, (*mask.shape, 3))
    colours = np.stack([mask * 7 % 200, mask * 37 % 200, mask * 91 % 200], -1)
    return (colours + noise).astype(np.uint8), mask


def write_camvid(folder, train=10, test=6, labels=(0, 1, 3, 8, 11)):
    """Frames and masks in the layout of the SegNet tutorial."""
    for split, count in (("train", train), ("test", test)):
        for name in (split, f"{split}annot"):
            (folder / name).mkdir(parents=True)
        for number in range(count):
            image, mask = scene(1000 * len(split) + number, labels)
            (folder / split / f"frame_{number:03d}.png").write_bytes(png(image))
            (folder / f"{split}annot" / f"frame_{number:03d}.png").write_bytes(png(mask))
    return folder


def write_cityscapes(folder, train=3, val=2, kind="labelIds", labels=(0, 7, 11, 21, 26, 33)):
    """Images and masks in the layout of the official packages, other files of theirs included."""
    for split, count, city in (("train", train, "aachen"), ("val", val, "lindau"), ("test", 1, "berlin")):
        for package in ("leftImg8bit", "gtFine"):
            (folder / package / split / city).mkdir(parents=True)
        for number in range(count):
            image, mask = scene(1000 * len(split) + number, labels)
            frame = f"{city}_{number:06d}_000019"
            (folder / "leftImg8bit" / split / city / f"{frame}_leftImg8bit.png").write_bytes(png(image))
            truth = folder / "gtFine" / split / city
            (truth / f"{frame}_gtFine_{kind}.png").write_bytes(png(mask))
            (truth / f"{frame}_gtFine_color.png").write_bytes(png(image))
            (truth / f"{frame}_gtFine_instanceIds.png").write_bytes(png(mask.astype(np.uint16)))
            (truth / f"{frame}_gtFine_polygons.json").write_text("{}")
    return folder


def train_id(label):
    return LABEL_IDS.index(label) if label in LABEL_IDS else 255
