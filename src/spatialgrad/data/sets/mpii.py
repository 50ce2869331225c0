"""MPII Human Pose: about 25,000 images of people in everyday activities, with 16 joints.

Andriluka, Pishchulin, Gehler & Schiele, "2D Human Pose Estimation: New Benchmark and State of the Art Analysis",
CVPR 2014. The labels of its test images are not public, so a part of the training images is used for testing.

Annotations are read from `annot/train.h5` and `annot/valid.h5`, the usual split of 22,246 and 2,958 people; if they are
missing, from the published `mpii_human_pose_v1_u12_1.mat`. That file does not define which training images to test on.
If the usual list `valid_images.txt` is next to it, its images are the test images; otherwise those of every eighth
video. People close to others are not used, as given by the file's `single_person`.

Both count pixels from 1; results count from 0. A joint is annotated if it has coordinates, hidden or not, as in the
usual training and evaluation. As usual, the side of a person's square is 250 pixels times the person's scale, and its
centre is 15 pixels times the scale below the annotated one. Distances are relative to the size of the head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.formats import read_mat
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.pose import ARMS, LEGS, People, PoseDataset, Skeleton, image_sizes, limbs_along, within_images
from spatialgrad.data.source import Source
from spatialgrad.utils.extras import install_command

SKELETON = Skeleton(
    joints=(*LEGS, "pelvis", "thorax", "upper neck", "head top", *ARMS),
    limbs=limbs_along((0, 1, 2, 6, 3, 4, 5), (10, 11, 12, 7, 13, 14, 15), (6, 7, 8, 9)),
    metric="pckh",
    threshold=0.5,
    # The usual evaluation does not count the pelvis and the thorax.
    scored=(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15),
)
MAT_NAME = "mpii_human_pose_v1_u12_1.mat"
HEAD_FACTOR = 0.6
"""Size of the head relative to the diagonal of its rectangle, as in the evaluation of MPII's authors."""
TEST_EVERY_VIDEO = 8
PIXELS_PER_SCALE = 200.0
"""The published scale is a person's height divided by this."""
ENLARGE = 1.25
LOWER = 15.0
"""Pixels, times the scale, by which the square is below the published centre, so that it includes the legs."""
NUM_PUBLISHED = (22_246, 2_958)
VALID_NAMES = ("valid", "val")
VALID_LIST = "valid_images.txt"
_IMAGE = re.compile(r"[\w-]+\.(jpg|jpeg|png)", re.ASCII)
_JOINTS = SKELETON.num_joints


@dataclass(frozen=True, kw_only=True, eq=False)
class Annotations:
    """People in images."""

    file: Path
    """Where they were read from, for errors."""
    images: list[str]
    """Name of each person's image."""
    joints: Tensor
    """Shape (people, 16, 2)."""
    annotated: Tensor
    """Shape (people, 16): whether a joint has coordinates."""
    centres: Tensor
    """Shape (people, 2)."""
    scales: Tensor
    """Shape (people,): height divided by 200 pixels."""
    heads: Tensor
    """Shape (people,): size of the head."""

    def __post_init__(self) -> None:
        if not self.images:
            raise CorruptDataError(f"{self.file} contains no usable annotations")
        for name in self.images:
            # The names become parts of paths.
            if not _IMAGE.fullmatch(name):
                raise CorruptDataError(f"{self.file} contains {name!r}, which is not the name of an image")
        right = self.centres.isfinite().all(1) & (self.scales > 0) & (self.heads > 0)
        right &= (self.scales + self.heads).isfinite()
        if not right.all():
            person = int((~right).nonzero()[0])
            raise CorruptDataError(
                f"{self.file}: person {person} in {self.images[person]} has the invalid centre "
                f"{self.centres[person].tolist()}, scale {float(self.scales[person])} or head size "
                f"{float(self.heads[person])}"
            )


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
            return read_published(folder / MAT_NAME, valid_list)
    raise MissingDataError(f"{place} has neither annot/train.h5 and annot/valid.h5 nor {MAT_NAME}")


def read_h5(path: Path) -> Annotations:
    """Read the annotations of one split.

    Raises:
        CorruptDataError: If an array is missing or has an unexpected shape.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"MPII's h5 files need h5py: {install_command('train')}") from error
    shapes: dict[str, tuple[int, ...]] = {"part": (_JOINTS, 2), "center": (2,), "scale": (), "normalize": ()}
    try:
        with h5py.File(path, "r") as file:
            arrays = {key: np.asarray(file[key][()], dtype=np.float64) for key in shapes}
            names = _names(file["imgname"][()])
    except Exception as error:  # h5py raises nearly anything for a damaged file
        raise CorruptDataError(f"{path} cannot be read ({error})") from error
    for key, shape in shapes.items():
        if arrays[key].shape != (len(names), *shape):
            raise CorruptDataError(
                f"{path}: {key!r} must have the shape {(len(names), *shape)}, not {arrays[key].shape}"
            )
    part, centre, scale, head = (torch.from_numpy(arrays[key]) for key in shapes)
    return Annotations(
        file=path,
        images=names,
        joints=part - 1,
        annotated=(part != 0).any(2),
        centres=centre - 1,
        scales=scale,
        heads=head,
    )


def _names(values: np.ndarray) -> list[str]:
    """Names of images: strings, or character codes padded with 0."""
    if values.ndim == 2:
        return [bytes(row[row > 0].astype(np.uint8).tolist()).decode("ascii") for row in values]
    return [value.decode("ascii") if isinstance(value, bytes) else str(value) for value in values.tolist()]


def read_published(path: Path, valid_list: Path | None = None) -> tuple[Annotations, Annotations, str]:
    """Read the annotations of the published .mat file.

    Args:
        path: The .mat file.
        valid_list: A list of the images to test on.

    Returns:
        People to train on, people to test on, and a description for reports.

    Raises:
        CorruptDataError: If it is damaged or has an unexpected structure.
    """
    release = read_mat(path.read_bytes(), "RELEASE", str(path), struct_as_record=False)
    try:
        people = list(_people(release.flat[0]))
    except Exception as error:  # a file with another structure raises nearly anything
        raise CorruptDataError(f"{path} cannot be read ({error!r})") from error
    if valid_list is not None:
        listed, how = set(valid_list.read_text().split()), f"tested on the images of {valid_list.name}"
        is_test = [person.image in listed for person in people]
    else:
        is_test, how = [person.video % TEST_EVERY_VIDEO == 0 for person in people], "every eighth video held out"
    train, test = (
        [person for person, held_out in zip(people, is_test, strict=True) if held_out == wanted]
        for wanted in (False, True)
    )
    return _collected(train, path), _collected(test, path), f"MPII, {how}"


@dataclass(frozen=True, kw_only=True)
class _Person:
    image: str
    video: int
    joints: np.ndarray
    annotated: np.ndarray
    centre: tuple[float, float]
    scale: float
    head: float


def _people(release: Any) -> Iterator[_Person]:
    """The people of the training images whose pose is annotated and who are not close to others."""
    flags = release.img_train.flatten()
    for number, image in enumerate(release.annolist.flat):
        if not flags[number]:
            continue
        rectangles = _items(image, "annorect")
        video = int(image.vididx.flat[0]) if _items(image, "vididx") else number
        for index in release.single_person.flatten()[number].flatten():
            person = rectangles[_checked(int(index) - 1, len(rectangles), "single_person")]
            places, poses = _items(person, "objpos"), _items(person, "annopoints")
            if not (places and poses and _items(person, "scale")):
                continue
            joints, annotated = np.zeros((_JOINTS, 2)), np.zeros(_JOINTS, dtype=bool)
            for point in _items(poses[0], "point"):
                joint = _checked(int(_number(point, "id")), _JOINTS, "id")
                joints[joint], annotated[joint] = (_number(point, "x"), _number(point, "y")), True
            yield _Person(
                image=str(image.image.flat[0].name.flat[0]),
                video=video,
                joints=joints,
                annotated=annotated,
                centre=(_number(places[0], "x"), _number(places[0], "y")),
                scale=_number(person, "scale"),
                head=HEAD_FACTOR
                * math.hypot(*(_number(person, f"{axis}2") - _number(person, f"{axis}1") for axis in "xy")),
            )


def _checked(index: int, length: int, name: str) -> int:
    # A negative index would silently count from the end.
    if not 0 <= index < length:
        raise IndexError(f"{name} points to element {index} of {length}")
    return index


def _items(struct: Any, name: str) -> list[Any]:
    """The elements of a field; none if it is empty or missing, as for people without a pose."""
    return list(getattr(struct, name, np.empty(0)).flat)


def _number(struct: Any, name: str) -> float:
    return float(getattr(struct, name).flat[0])


def _collected(people: list[_Person], path: Path) -> Annotations:
    def column(name: str, *shape: int) -> Tensor:
        values = np.array([getattr(person, name) for person in people])
        return torch.from_numpy(values.reshape(len(people), *shape))

    return Annotations(
        file=path,
        images=[person.image for person in people],
        joints=column("joints", _JOINTS, 2) - 1,
        annotated=column("annotated", _JOINTS).bool(),
        centres=column("centre", 2) - 1,
        scales=column("scale"),
        heads=column("head"),
    )


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
