"""The annotations of MPII: the usual split (h5) and the published file (.mat).

Both count pixels from 1; results count from 0. A joint is annotated if it has coordinates, hidden or not, as in the
usual training and evaluation. (`visible` of the h5 files and `is_visible` of the .mat file tell whether a joint is
occluded.)

The .mat file does not define which training images to test on. If the usual list `valid_images.txt` is next to it, its
images are the test images; otherwise those of every eighth video. People close to others are not used, as given by the
file's `single_person`.
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

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.mat import read_mat as read_variable
from spatialgrad.data.pose import ARMS, LEGS, Skeleton, limbs_along

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
MAX_PEOPLE = 100_000
"""Four times as many as published: an array of more would only exhaust the memory."""
MAX_NAME = 64
"""Letters of the name of an image."""
MAX_MAT_BYTES = 1 << 30
"""The published .mat file, decompressed, has some hundred megabytes."""
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


def read_h5(path: Path) -> Annotations:
    """Read the annotations of one split.

    Raises:
        CorruptDataError: If an array is missing or has an unexpected shape.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("MPII's h5 files need h5py: pip install 'spatialgrad[train]'") from error
    try:
        with h5py.File(path, "r") as file:
            people = _table(h5py, file, "scale", (), path).shape[0]
            part, centre, scale, head = (
                torch.from_numpy(_table(h5py, file, key, shape, path, people)[()].astype(np.float64))
                for key, shape in (("part", (_JOINTS, 2)), ("center", (2,)), ("scale", ()), ("normalize", ()))
            )
            names = _names(_table(h5py, file, "imgname", None, path, people)[()], path)
    except DataError:
        raise
    except Exception as error:  # h5py raises nearly anything for a damaged file
        raise CorruptDataError(f"{path} cannot be read ({error})") from error
    return Annotations(
        file=path,
        images=names,
        joints=part - 1,
        annotated=(part != 0).any(2),
        centres=centre - 1,
        scales=scale,
        heads=head,
    )


def _table(h5py: Any, file: Any, key: str, shape: tuple[int, ...] | None, path: Path, people: int | None = None) -> Any:
    """One array of an h5 file, if it is in the file itself, has the right shape and takes little memory."""
    link = file.get(key, getlink=True)
    found = file[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise CorruptDataError(f"{path} has no array {key!r}")
    expected = ("people", *map(str, shape or ()))
    right = found.ndim >= 1 and len(found) <= MAX_PEOPLE and people in (None, len(found))
    if not right or (shape is not None and found.shape[1:] != shape):
        raise CorruptDataError(f"{path}: {key!r} has the shape {found.shape}, not ({', '.join(expected)})")
    row = math.prod(found.shape[1:]) * found.dtype.itemsize
    # Strings of any length are refused as well: all of them could be the same huge one.
    if found.dtype.kind not in ("iuf" if shape is not None else "iufS") or row > 8 * MAX_NAME:
        raise CorruptDataError(
            f"{path}: {key!r} contains {found.dtype} of shape {found.shape}, not numbers or short names"
        )
    filters = found.id.get_create_plist()
    kinds = [filters.get_filter(number)[0] for number in range(filters.get_nfilters())]
    # Chunks are decompressed as a whole, and twice compressed ones could be of any size.
    if math.prod(found.chunks or (0,)) * found.dtype.itemsize > 8 * MAX_NAME * MAX_PEOPLE or len(set(kinds)) < len(
        kinds
    ):
        raise CorruptDataError(f"{path}: {key!r} is stored in too large chunks, {found.chunks}")
    return found


def _names(values: np.ndarray, path: Path) -> list[str]:
    """Names of images: strings, or character codes padded with 0."""
    try:
        if values.ndim == 2:
            return [bytes(row[row > 0].astype(np.uint8).tolist()).decode("ascii") for row in values]
        return [value.decode("ascii") if isinstance(value, bytes) else str(value) for value in values.tolist()]
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path}: 'imgname' is not text ({error})") from error


def read_mat(path: Path, valid_list: Path | None = None) -> tuple[Annotations, Annotations, str]:
    """Read the published annotations.

    Args:
        path: The .mat file.
        valid_list: A list of the images to test on.

    Returns:
        People to train on, people to test on, and a description for reports.

    Raises:
        CorruptDataError: If it is damaged or has an unexpected structure.
    """
    if path.stat().st_size > MAX_MAT_BYTES:
        raise CorruptDataError(f"{path} has more than {MAX_MAT_BYTES:,} bytes")
    release = read_variable(path.read_bytes(), "RELEASE", str(path), max_bytes=MAX_MAT_BYTES, struct_as_record=False)
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
