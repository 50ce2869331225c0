"""Leeds Sports Pose Extended: 10,000 images of athletes, one person in each, with 14 joints.

Johnson & Everingham 2011, "Learning Effective Human Pose Estimation from Inaccurate Annotation". It was published as
training images alone; here, every fifth image (numbers 5, 10, ...) is a test image. `joints.mat` holds x, y and whether
a joint is visible, for each joint of each image; image `im00001.jpg` is the first.

It does not say where a person is, so that squares are put around the visible joints, for test images too. Distances
are measured by the torso: the largest distance of a visible shoulder from a visible hip. People without any are not
scored.
"""

from __future__ import annotations

import io
import re
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.file_lists import find_files
from spatialgrad.data.files.image_files import ImageFiles
from spatialgrad.data.person_crops import boxes_around, image_sizes, within_images
from spatialgrad.data.pose import People, PoseDataset
from spatialgrad.data.skeleton import LSP
from spatialgrad.data.source import Source

NUM_PUBLISHED = 10_000
ANNOTATIONS = "joints.mat"
TEST_EVERY = 5
_IMAGE = re.compile(r"im(\d{5})\.jpg", re.ASCII)
_SHOULDERS = [LSP.joints.index(f"{side} shoulder") for side in ("left", "right")]
_HIPS = [LSP.joints.index(f"{side} hip") for side in ("left", "right")]


def read(place: Path) -> PoseDataset:
    """Read a folder or a plain tar archive with `images/` and `joints.mat`; no image is decoded yet."""
    found = find_files(place, ["images/im*.jpg", ANNOTATIONS])
    annotations = [name for name in found.spans if PurePosixPath(name).name == ANNOTATIONS]
    if not annotations:
        raise MissingDataError(f"{place} has no {ANNOTATIONS}")
    joints, visible = read_joints(found.select(annotations).read(0), found.path(annotations[0]))
    files = found.select([name for name in found.spans if _IMAGE.fullmatch(PurePosixPath(name).name)])
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
        skeleton=LSP,
        image_size=128,
    )


def read_joints(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Joints, shape (images, 14, 2), and which of them are visible, from `joints.mat`; hidden ones are at (0, 0).

    Raises:
        CorruptDataError: If it is damaged or has another shape.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError("LSPe's annotations need scipy: pip install 'spatialgrad[train]'") from error
    try:
        values = np.asarray(loadmat(io.BytesIO(content), variable_names=["joints"])["joints"], dtype=np.float64)
    except Exception as error:  # scipy raises nearly anything for a damaged file
        raise CorruptDataError(f"{name} cannot be read ({error!r})") from error
    if values.ndim != 3 or values.shape[:2] != (LSP.num_joints, 3) or not values.size:
        raise CorruptDataError(f"{name} must hold {LSP.num_joints} joints × 3 × images, but has {values.shape}")
    table = torch.from_numpy(values.transpose(2, 0, 1).copy())
    flags = table[..., 2]
    if not ((flags == 0) | (flags == 1)).all():
        raise CorruptDataError(f"{name} must say 0 or 1 for every joint, whether it is visible")
    visible = flags == 1
    # Where a hidden joint is no one knows: often it is not even a number, which would spread to the loss.
    return torch.where(visible[..., None], table[..., :2], 0.0), visible


def torso_lengths(joints: Tensor, visible: Tensor) -> Tensor:
    """The largest distance of a visible shoulder from a visible hip; 0 where there is none."""
    shoulders, hips = joints[:, _SHOULDERS, None], joints[:, None, _HIPS]
    seen = visible[:, _SHOULDERS, None] & visible[:, None, _HIPS]
    distances = (shoulders - hips).norm(dim=-1)
    return torch.where(seen, distances, torch.zeros_like(distances)).flatten(1).amax(1)


def _check_numbers(files: ImageFiles, annotated: int, place: Path) -> None:
    """Refuse annotations without an image and images without annotations; afterwards, image i is in row i - 1."""
    numbers = [int(PurePosixPath(name.decode()).stem.removeprefix("im")) for name in files.names]
    if without_image := sorted(set(range(1, annotated + 1)) - set(numbers)):
        name = f"im{without_image[0]:05d}.jpg"
        raise MissingDataError(
            f"{place} has no images/{name}, which {ANNOTATIONS} has an annotation for "
            f"(and {len(without_image) - 1} more are missing)"
        )
    if strange := sorted(set(numbers) - set(range(1, annotated + 1))):
        raise CorruptDataError(f"{place} has images/im{strange[0]:05d}.jpg, but {ANNOTATIONS} ends with {annotated}")
    if len(numbers) != annotated:
        raise CorruptDataError(f"{place} has {len(numbers)} images for {annotated} annotations: some are there twice")


SOURCE = Source(
    name="lspet",
    description="10,000 images of athletes, 14 joints, as images/im00001.jpg, ... and joints.mat",
    places=lambda root: [root / "lspet", root / "lspet_dataset", root / "lspet.tar"],
    read=read,
    fetch=None,
    by_hand=lambda root: f"unpack lspet_dataset.zip of its authors (images/ and joints.mat) into {root / 'lspet'}",
    task="pose",
)
