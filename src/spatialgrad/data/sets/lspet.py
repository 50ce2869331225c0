"""Leeds Sports Pose Extended: 10,000 images of athletes, one person in each, with 14 joints.

Johnson & Everingham 2011, "Learning Effective Human Pose Estimation from Inaccurate Annotation". It was published
without test images; here, every fifth image (numbers 5, 10, ...) is a test image. `joints.mat` contains x, y and
visibility for each joint of each image; image `im00001.jpg` is the first.

It does not annotate where a person is, so squares are placed around the visible joints, for test images too. Distances
are relative to the torso: the largest distance between a visible shoulder and a visible hip. People without either are
not scored.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.formats import read_mat
from spatialgrad.data.files.listing import FileList, find_files
from spatialgrad.data.pose import (
    ARMS,
    LEGS,
    People,
    PoseDataset,
    Skeleton,
    boxes_around,
    image_sizes,
    limbs_along,
    within_images,
)
from spatialgrad.data.registry import Source

NUM_PUBLISHED = 10_000
ANNOTATIONS = "joints.mat"
TEST_EVERY = 5
SKELETON = Skeleton(
    joints=(*LEGS, *ARMS, "neck", "head top"),
    limbs=limbs_along((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11), (2, 8), (3, 9), (2, 3), (8, 12), (9, 12, 13)),
    metric="pck",
    threshold=0.2,
    scored=tuple(range(14)),
)
_IMAGE = re.compile(r"im(\d{5})\.jpg", re.ASCII)
_SHOULDERS = [SKELETON.joints.index(f"{side} shoulder") for side in ("left", "right")]
_HIPS = [SKELETON.joints.index(f"{side} hip") for side in ("left", "right")]


def read(place: Path) -> PoseDataset:
    """Read a folder or an uncompressed tar archive with `images/` and `joints.mat`; images are decoded later."""
    found = find_files(place, ["images/im*.jpg", ANNOTATIONS])
    names = [PurePosixPath(name).name for name in found.relative_names()]
    if ANNOTATIONS not in names:
        raise MissingDataError(f"{place} has no {ANNOTATIONS}")
    annotations = names.index(ANNOTATIONS)
    joints, visible = read_joints(found.read(annotations), found.name(annotations))
    files = found.select([index for index, name in enumerate(names) if _IMAGE.fullmatch(name)])
    _check_numbers(files, len(joints), place)
    sizes = image_sizes(files)
    visible = within_images(files, joints, visible, sizes)
    people = People(files, joints, visible, boxes_around(joints, visible, sizes), torso_lengths(joints, visible))
    number = torch.arange(1, len(people) + 1)
    subset = "" if len(people) == NUM_PUBLISHED else f" {len(people):,}"
    return PoseDataset(
        name="lspet",
        description=f"LSPe{subset}, every fifth image held out for testing",
        train=people.select((number % TEST_EVERY != 0).nonzero().flatten()),
        test=people.select((number % TEST_EVERY == 0).nonzero().flatten()),
        skeleton=SKELETON,
        image_size=128,
    )


def read_joints(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Joints, shape (images, 14, 2), and which of them are visible, from `joints.mat`; hidden ones are at (0, 0).

    Raises:
        CorruptDataError: If it is damaged or has an unexpected shape.
    """
    try:
        values = np.asarray(read_mat(content, "joints", name), dtype=np.float64)
    except (TypeError, ValueError) as error:  # cells or text
        raise CorruptDataError(f"{name} must contain numbers ({error})") from error
    if values.ndim != 3 or values.shape[:2] != (SKELETON.num_joints, 3) or not values.size:
        raise CorruptDataError(
            f"{name} must have the shape ({SKELETON.num_joints} joints, 3, images), not {values.shape}"
        )
    table = torch.from_numpy(values.transpose(2, 0, 1).copy())
    flags = table[..., 2]
    if not ((flags == 0) | (flags == 1)).all():
        raise CorruptDataError(f"{name} must contain 0 or 1 for the visibility of every joint")
    visible = flags == 1
    # The coordinates of hidden joints are often NaN, which would spread to the loss.
    return torch.where(visible[..., None], table[..., :2], 0.0), visible


def torso_lengths(joints: Tensor, visible: Tensor) -> Tensor:
    """The largest distance between a visible shoulder and a visible hip; 0 if there is none."""
    shoulders, hips = joints[:, _SHOULDERS, None], joints[:, None, _HIPS]
    seen = visible[:, _SHOULDERS, None] & visible[:, None, _HIPS]
    distances = (shoulders - hips).norm(dim=-1)
    return torch.where(seen, distances, torch.zeros_like(distances)).flatten(1).amax(1)


def _check_numbers(files: FileList, annotated: int, place: Path) -> None:
    """Check that every annotation has an image and every image an annotation, so that image i is in row i - 1."""
    numbers = [int(PurePosixPath(name.decode()).stem.removeprefix("im")) for name in files.names]
    if without_image := sorted(set(range(1, annotated + 1)) - set(numbers)):
        raise MissingDataError(
            f"{place} has no images/im{without_image[0]:05d}.jpg, for which {ANNOTATIONS} has an annotation "
            f"({len(without_image) - 1} more are missing)"
        )
    if len(numbers) != annotated:
        raise CorruptDataError(f"{place} has {len(numbers)} images for {annotated} annotations in {ANNOTATIONS}")


SOURCE = Source(
    name="lspet",
    description="10,000 images of athletes, 14 joints, as images/im00001.jpg, ... and joints.mat",
    places=["lspet", "lspet_dataset", "lspet.tar"],
    read=read,
    manual="extract lspet_dataset.zip of its authors (images/ and joints.mat) into {root}/lspet",
    metric=SKELETON.metric,
)
