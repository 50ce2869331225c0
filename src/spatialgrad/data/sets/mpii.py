"""MPII Human Pose: about 25,000 images of people in everyday activities, with 16 joints.

Andriluka, Pishchulin, Gehler & Schiele, "2D Human Pose Estimation: New Benchmark and State of the Art Analysis",
CVPR 2014. The labels of its test images are not public, so a part of the training images is used for testing.

Annotations are read from `annot/train.h5` and `annot/valid.h5`, the usual split of 22,246 and 2,958 people; if they are
missing, from the published `mpii_human_pose_v1_u12_1.mat`. See `mpii_annotations.py` for both. Images are decoded when
they are needed.

As usual, the side of a person's square is 250 pixels times the person's scale, and its centre is 15 pixels times the
scale below the annotated one. Distances are relative to the size of the head.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.errors import MissingDataError
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.person_crops import image_sizes, within_images
from spatialgrad.data.pose import People, PoseDataset
from spatialgrad.data.sets.mpii_annotations import MAT_NAME, SKELETON, Annotations, read_h5, read_mat
from spatialgrad.data.source import Source

PIXELS_PER_SCALE = 200.0
"""The published scale is a person's height divided by this."""
ENLARGE = 1.25
LOWER = 15.0
"""Pixels, times the scale, by which the square is below the published centre, so that it includes the legs."""
NUM_PUBLISHED = (22_246, 2_958)
VALID_NAMES = ("valid", "val")
VALID_LIST = "valid_images.txt"


def read(place: Path) -> PoseDataset:
    """Read a folder with `images/` and annotations; of the images, only the headers are read."""
    train, test, title = _annotations(place)
    return PoseDataset(
        name="mpii",
        description=title,
        train=people_of(train, place),
        test=people_of(test, place),
        skeleton=SKELETON,
        image_size=256,
    )


def people_of(annotations: Annotations, place: Path) -> People:
    """People with their images in `place/images`.

    Raises:
        MissingDataError: If an image does not exist.
    """
    folder = place / "images"
    existing = {child.name for child in folder.iterdir()} if folder.is_dir() else set()
    if absent := sorted(set(annotations.images) - existing):
        raise MissingDataError(
            f"{folder / absent[0]} not found, but {annotations.file} has annotations for it "
            f"({len(absent) - 1} more images are missing)"
        )
    names = np.array([f"images/{name}".encode() for name in annotations.images], dtype=bytes)
    files = FileList(place, names)
    visible = within_images(files, annotations.joints, annotations.annotated, image_sizes(files))
    scale = annotations.scales[:, None]
    centres = annotations.centres + torch.cat([torch.zeros_like(scale), LOWER * scale], 1)
    boxes = torch.cat([centres, PIXELS_PER_SCALE * ENLARGE * scale], 1)
    return People(files, annotations.joints, visible, boxes, annotations.heads)


def _annotations(place: Path) -> tuple[Annotations, Annotations, str]:
    train = place / "annot" / "train.h5"
    valid = next((path for name in VALID_NAMES if (path := train.with_name(f"{name}.h5")).is_file()), None)
    if train.is_file() and valid is not None:
        parts = read_h5(train), read_h5(valid)
        sizes = len(parts[0].images), len(parts[1].images)
        return *parts, "MPII" if sizes == NUM_PUBLISHED else f"MPII, {sizes[0]:,} and {sizes[1]:,} people"
    for folder in (place, place / "mpii_human_pose_v1_u12_2", place / "annot"):
        if (folder / MAT_NAME).is_file():
            valid_list = next(
                (path for part in (folder, place / "annot") if (path := part / VALID_LIST).is_file()), None
            )
            return read_mat(folder / MAT_NAME, valid_list)
    raise MissingDataError(f"{place} has neither annot/train.h5 and annot/valid.h5 nor {MAT_NAME}")


SOURCE = Source(
    name="mpii",
    description="about 25,000 images of people, 16 joints, as images/ and annot/train.h5, annot/valid.h5 or its .mat",
    places=lambda root: [root / "mpii"],
    read=read,
    fetch=None,
    manual=lambda root: (
        "download images and annotations from http://human-pose.mpi-inf.mpg.de; put the images into "
        f"{root / 'mpii/images'} and {MAT_NAME} (or annot/train.h5 and annot/valid.h5) into {root / 'mpii'}"
    ),
    metric=SKELETON.metric,
)
