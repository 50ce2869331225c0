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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.formats import read_mat
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.pose import ARMS, LEGS, People, PoseDataset, Skeleton, image_sizes, limbs_along, within_images
from spatialgrad.data.registry import Source
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
VALID_LIST = "valid_images.txt"
SHAPES: dict[str, tuple[int, ...]] = {"part": (SKELETON.num_joints, 2), "center": (2,), "scale": (), "normalize": ()}
Annotations = dict[str, np.ndarray]
"""As in the h5 files: `imgname`, and arrays of `SHAPES` for each person. Joints at (0, 0) are not annotated;
`normalize` is the size of the head."""


def read(place: Path) -> PoseDataset:
    """Read a folder with `images/` and annotations; of the images, only the headers are read."""
    train_file, test_file = place / "annot" / "train.h5", place / "annot" / "valid.h5"
    if not test_file.is_file():
        test_file = place / "annot" / "val.h5"
    if train_file.is_file() and test_file.is_file():
        train, test = read_h5(train_file), read_h5(test_file)
        sizes = len(train["imgname"]), len(test["imgname"])
        title = "MPII" if sizes == NUM_PUBLISHED else f"MPII, {sizes[0]:,} and {sizes[1]:,} people"
    else:
        train_file = test_file = _find_published(place)
        train, test, title = read_published(train_file)
    return PoseDataset(
        name="mpii",
        description=title,
        train=people_of(train, train_file, place),
        test=people_of(test, test_file, place),
        skeleton=SKELETON,
        image_size=256,
    )


def people_of(annotations: Annotations, file: Path, place: Path) -> People:
    """People with their images in `place/images`.

    Args:
        annotations: Of a split.
        file: Where they were read from, for errors.
        place: The folder of the data set.

    Raises:
        MissingDataError: If an image does not exist.
        CorruptDataError: If a person has no place or no size.
    """
    folder, images = place / "images", annotations["imgname"].tolist()
    existing = {child.name for child in folder.iterdir()} if folder.is_dir() else set()
    if absent := sorted(set(images) - existing):
        raise MissingDataError(
            f"{folder / absent[0]} not found, but {file} has annotations for it ({len(absent) - 1} more images are "
            "missing)"
        )
    part, centres, scales, heads = (torch.from_numpy(annotations[key]) for key in SHAPES)
    usable = centres.isfinite().all(1) & scales.isfinite() & (scales > 0) & (heads > 0)
    if not usable.all():
        raise CorruptDataError(
            f"{file}: the person in {images[int((~usable).nonzero()[0])]} has no centre, scale or head"
        )
    files = FileList(place, np.array([f"images/{name}".encode() for name in images], dtype=bytes))
    joints = part - 1
    visible = within_images(files, joints, (part != 0).any(2), image_sizes(files))
    centres = centres - 1 + torch.stack([torch.zeros_like(scales), LOWER * scales], 1)
    boxes = torch.cat([centres, PIXELS_PER_SCALE * ENLARGE * scales[:, None]], 1)
    return People(files, joints, visible, boxes, heads)


def read_h5(path: Path) -> Annotations:
    """Read the annotations of one split.

    Raises:
        CorruptDataError: If an array is missing or has an unexpected shape.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"MPII's h5 files need h5py: {install_command('train')}") from error
    try:
        with h5py.File(path, "r") as file:
            arrays = {key: np.asarray(file[key][()], dtype=np.float64) for key in SHAPES}
            arrays["imgname"] = np.array([_text(name) for name in file["imgname"][()]])
    except Exception as error:  # h5py raises nearly anything for a damaged file
        raise CorruptDataError(f"{path} cannot be read ({error})") from error
    for key, shape in SHAPES.items():
        expected = (len(arrays["imgname"]), *shape)
        if arrays[key].shape != expected:
            raise CorruptDataError(f"{path}: {key!r} must have the shape {expected}, not {arrays[key].shape}")
    return arrays


def read_published(path: Path) -> tuple[Annotations, Annotations, str]:
    """Read the annotations of the published .mat file.

    Returns:
        People to train on, people to test on, and a description for reports.

    Raises:
        CorruptDataError: If it is damaged or has an unexpected structure.
    """
    release = read_mat(path.read_bytes(), "RELEASE", str(path), struct_as_record=False)
    try:
        names, videos, *columns = (np.array(column) for column in zip(*_people(release.flat[0]), strict=True))
    except Exception as error:  # a file with another structure raises nearly anything
        raise CorruptDataError(f"{path} cannot be read ({error!r})") from error
    lists = [folder / VALID_LIST for folder in (path.parent, path.parent / "annot")]
    if valid_list := next((file for file in lists if file.is_file()), None):
        is_test, how = np.isin(names, valid_list.read_text().split()), f"tested on the images of {VALID_LIST}"
    else:
        is_test, how = videos % TEST_EVERY_VIDEO == 0, "every eighth video held out"
    people = dict(zip(("imgname", *SHAPES), (names, *columns), strict=True))
    train, test = ({key: column[rows] for key, column in people.items()} for rows in (~is_test, is_test))
    return train, test, f"MPII, {how}"


def _find_published(place: Path) -> Path:
    for folder in (place, place / "mpii_human_pose_v1_u12_2", place / "annot"):
        if (folder / MAT_NAME).is_file():
            return folder / MAT_NAME
    raise MissingDataError(f"{place} has neither annot/train.h5 and annot/valid.h5 nor {MAT_NAME}")


def _text(name: Any) -> str:
    """The name of an image: bytes, or character codes padded with 0."""
    return (name if isinstance(name, bytes) else bytes(name[name > 0].astype(np.uint8))).decode()


def _people(release: Any) -> Iterator[tuple[str, int, np.ndarray, tuple[float, float], float, float]]:
    """Image, video and `SHAPES` of the annotated people in training images who are not close to others."""
    flags, apart = release.img_train.flatten(), release.single_person.flatten()
    for number, image in enumerate(release.annolist.flat):
        if not flags[number]:
            continue
        rectangles = _items(image, "annorect")
        video = int(image.vididx.flat[0]) if _items(image, "vididx") else number
        for index in apart[number].flatten():
            person = rectangles[int(index) - 1]
            places, poses = _items(person, "objpos"), _items(person, "annopoints")
            if not (places and poses and _items(person, "scale")):
                continue
            part = np.zeros(SHAPES["part"])
            for point in _items(poses[0], "point"):
                part[int(_number(point, "id"))] = _number(point, "x"), _number(point, "y")
            diagonal = math.hypot(*(_number(person, f"{axis}2") - _number(person, f"{axis}1") for axis in "xy"))
            centre = (_number(places[0], "x"), _number(places[0], "y"))
            name = str(image.image.flat[0].name.flat[0])
            yield name, video, part, centre, _number(person, "scale"), HEAD_FACTOR * diagonal


def _items(struct: Any, name: str) -> list[Any]:
    """The elements of a field; none if it is empty or missing, as for people without a pose."""
    return list(getattr(struct, name, np.empty(0)).flat)


def _number(struct: Any, name: str) -> float:
    return float(getattr(struct, name).flat[0])


SOURCE = Source(
    name="mpii",
    description="about 25,000 images of people, 16 joints, as images/ and annot/train.h5, annot/valid.h5 or its .mat",
    places=["mpii"],
    read=read,
    manual=(
        "download images and annotations from http://human-pose.mpi-inf.mpg.de; put the images into "
        f"{{root}}/mpii/images and {MAT_NAME} (or annot/train.h5 and annot/valid.h5) into {{root}}/mpii"
    ),
    metric=SKELETON.metric,
)
