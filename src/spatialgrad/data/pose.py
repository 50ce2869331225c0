"""Data sets for human pose: people in images, and how a person becomes part of a batch.

Coordinates are (x, y) in pixels, and the centre of the top left pixel is (0, 0), as in `warp.py`.

A person's square is cropped from the image with a margin (the canvas), within which augmentation rotates, resizes and
mirrors. Files are decoded when they are needed; canvases are kept if those of all people fit into memory.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from spatialgrad.data.augment import IMAGENET_MEAN, IMAGENET_STD, constant
from spatialgrad.data.batches import Batch, BatchDataset, Pass
from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.images import decode, image_size, to_tensor
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.rng import generator_for
from spatialgrad.data.warp import Move, affine, move_points, warp_image

if TYPE_CHECKING:
    from PIL.Image import Image

LEGS = ("right ankle", "right knee", "right hip", "left hip", "left knee", "left ankle")
ARMS = ("right wrist", "right elbow", "right shoulder", "left shoulder", "left elbow", "left wrist")
MAX_BYTES_KEPT = 1 << 30
"""Canvases of a split are kept in memory up to this size, over all worker processes."""
MAX_ROTATION = 2.0
"""Largest rotation, as a multiple of its standard deviation."""
ROTATION_SHARE = 0.6
"""Share of the people that are rotated, as in the training that the paper cites."""
OUTSIDE_BY = 1.0
"""Pixels by which a joint may be outside its image and still count: annotations are rounded."""
ENLARGE = 1.4
"""Enlargement of squares around joints: feet, hands and hair extend beyond them."""


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The joints that a data set annotates, and how predictions of them are scored."""

    joints: tuple[str, ...]
    """Their names in the order of the annotations; those on a side of the body begin with `left` or `right`."""
    limbs: tuple[tuple[int, int], ...]
    """Pairs of joints to connect in a drawing."""
    metric: str
    """`pckh` (distances relative to the size of the head) or `pck` (relative to the torso)."""
    threshold: float
    """Largest relative distance of a correct prediction."""
    scored: tuple[int, ...]
    """The joints that the metric counts."""

    @property
    def num_joints(self) -> int:
        """Number of joints, and of a network's heat maps."""
        return len(self.joints)

    @property
    def mirrored(self) -> tuple[int, ...]:
        """For every joint, the one that takes its place in a mirrored image."""
        return tuple(self.joints.index(_other_side(name)) for name in self.joints)

    def side(self, joint: int) -> str:
        """`left`, `right` or `middle`."""
        first = self.joints[joint].split()[0]
        return first if first in ("left", "right") else "middle"


def limbs_along(*chains: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Limbs between the neighbours in each chain of joints."""
    return tuple(pair for chain in chains for pair in pairwise(chain))


def _other_side(name: str) -> str:
    side, _, rest = name.partition(" ")
    return f"{ {'left': 'right', 'right': 'left'}[side] } {rest}" if side in ("left", "right") else name


@dataclass(frozen=True, eq=False)
class People:
    """One split of a pose data set.

    Attributes:
        images: The image file of every person; a file with several people is listed several times. Or the images
            themselves, uint8 of shape (people, 3, height, width).
        joints: Shape (people, joints, 2), float64: coordinates in the image.
        visible: Shape (people, joints): whether a joint is annotated and within the image.
        boxes: Shape (people, 3), float64: centre x, centre y and side of the square that contains the person.
        lengths: Shape (people,), float64: reference length of the metric, in pixels of the image; 0 if unknown.
    """

    images: FileList | Tensor
    joints: Tensor
    visible: Tensor
    boxes: Tensor
    lengths: Tensor
    _kept: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self) -> dict[str, Any]:
        # Sent to worker processes, which decode what they need.
        return {**self.__dict__, "_kept": {}}

    def select(self, indices: Tensor) -> People:
        """The people at `indices`, in that order."""
        images = self.images
        return People(
            images[indices] if isinstance(images, Tensor) else images.select(indices.numpy()),
            self.joints[indices],
            self.visible[indices],
            self.boxes[indices],
            self.lengths[indices],
        )

    def content(self) -> list[Tensor | FileList]:
        """What it consists of."""
        # Boxes and lengths are computed with square roots, whose last bit may differ from machine to machine.
        return [self.images, self.joints, self.visible, self.boxes.float(), self.lengths.float()]

    def canvas(self, index: int, size: int) -> Tensor:
        """A person's canvas, uint8 of shape (3, canvas, canvas), whose middle is the square resized to `size`."""
        key = (size, index)
        if key not in self._kept:
            canvas = crop_person(self._image(index), self.boxes[index].tolist(), size)
            processes = getattr(get_worker_info(), "num_workers", 1)
            if len(self) * canvas.numel() * processes > MAX_BYTES_KEPT:
                return canvas
            self._kept[key] = canvas
        return self._kept[key]

    def _image(self, index: int) -> Image:
        """The whole image of a person."""
        if isinstance(self.images, Tensor):
            from PIL.Image import fromarray

            return fromarray(self.images[index].permute(1, 2, 0).numpy())
        return decode(self.images.read(index), self.images.name(index))


@dataclass(frozen=True, kw_only=True)
class PoseAugmentation:
    """Augmentation of training images."""

    scale: float = 0.25
    """Standard deviation of the factor on the side of the person's square, which is clipped to 1 ± this."""
    rotation: float = 30.0
    """Standard deviation, in degrees, of the angle by which 60 % of the people are rotated; at most twice this."""
    flip: bool = True
    """Mirror half of the people; left joints become right ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PoseDataset(BatchDataset[PoseAugmentation]):
    """A data set for pose, for `train_batches` and `eval_batches`."""

    train: People
    test: People
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    skeleton: Skeleton
    image_size: int = 256
    """Height and width of the images in a batch."""

    def read(self, run: Pass[PoseAugmentation], indices: Tensor) -> Batch:
        """Images (uint8), joints in them, which of these are visible, and the reference lengths of the metric."""
        people = [self._read_one(run, index) for index in indices.tolist()]
        return tuple(torch.stack(tensors) for tensors in zip(*people, strict=True))

    def _read_one(self, run: Pass[PoseAugmentation], index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        people, size = self.train if run.split == "train" else self.test, self.image_size
        canvas = people.canvas(index, size)
        factor, joints = place_on_canvas(people.joints[index], people.boxes[index], size)
        visible, length = people.visible[index], people.lengths[index] * factor
        if run.augmentation is None:
            margin = (canvas_side(size) - size) // 2
            image = canvas[:, margin : margin + size, margin : margin + size]
            return image, (joints - margin).float(), visible, length.float()
        move = draw_person_move(run.augmentation, seed=run.seed, epoch=run.epoch, index=index)
        image, joints, visible = move_person(canvas, joints, visible, move, size, self.skeleton)
        return image, joints.float(), visible, (length * move.scale).float()


def draw_person_move(augmentation: PoseAugmentation, *, seed: int, epoch: int, index: int) -> Move:
    """Draw the augmentation of a person in an epoch, which depends on the arguments alone."""
    numbers = torch.rand(4, generator=generator_for("person", seed, epoch, index), dtype=torch.float64)
    # Normal numbers from uniform ones: always the same number of draws, in a single call.
    normal = torch.special.ndtri(numbers[:2]).tolist()
    u_turned, u_flip = numbers[2:].tolist()
    spread, rotation = augmentation.scale, augmentation.rotation
    square = min(max(1 + spread * normal[0], 1 - spread), 1 + spread)
    angle = min(max(rotation * normal[1], -MAX_ROTATION * rotation), MAX_ROTATION * rotation)
    return Move(
        # A larger square shows a smaller person.
        scale=1 / square,
        angle=angle if u_turned < ROTATION_SHARE else 0.0,
        flip=augmentation.flip and u_flip < 0.5,
        row=0.5,
        column=0.5,
    )


def move_person(
    canvas: Tensor, joints: Tensor, visible: Tensor, move: Move, size: int, skeleton: Skeleton
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate, resize and mirror a person about the middle of its canvas, image and joints together.

    Args:
        canvas: uint8, shape (3, canvas, canvas).
        joints: Shape (joints, 2), on the canvas.
        visible: Shape (joints,).
        move: What to do.
        size: Height and width of the result.
        skeleton: Defines which joints swap places when mirrored.

    Returns:
        The image, and its joints and their visibility.
    """
    middle, centre = (canvas.shape[-1] - 1) / 2, (size - 1) / 2
    matrix = affine(
        source=(middle, middle), target=(centre, centre), scale=move.scale, angle=move.angle, flip=move.flip
    )
    image = warp_image(canvas, matrix, (size, size), (0.0, 0.0, 0.0))
    joints = move_points(joints, matrix)
    if move.flip:
        joints, visible = (mirror_joints(values, skeleton) for values in (joints, visible))
    return image, joints, visible


def mirror_joints(values: Tensor, skeleton: Skeleton, dim: int = 0) -> Tensor:
    """Swap left and right joints."""
    return values.index_select(dim, constant(skeleton.mirrored, values.device))


class AnnotationWarning(UserWarning):
    """Some annotations were ignored; the message names the files."""


def canvas_side(size: int) -> int:
    """Side of a canvas: a person's square with a margin of a quarter of its side."""
    return size + 2 * (size // 4)


def place_on_canvas(joints: Tensor, box: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Scale from the image to the canvas, and the joints on the canvas.

    Args:
        joints: Shape (joints, 2), in the image.
        box: Centre x, centre y and side of the person's square.
        size: Side of the square on the canvas.
    """
    factor = size / box[2]
    return factor, (joints - box[:2]) * factor + (canvas_side(size) - 1) / 2


def crop_person(image: Image, box: Sequence[float], size: int) -> Tensor:
    """A person's canvas, in the middle of which the square is resized to `size`; black beyond the image.

    Args:
        image: The whole image.
        box: Centre x, centre y and side of the person's square.
        size: Side of the square on the canvas.
    """
    from PIL.Image import Resampling

    x, y, side = box
    reach = side / size * canvas_side(size)
    # Pillow counts from the corner of a pixel and crops whole pixels; resizing does the rest.
    left, top = x + 0.5 - reach / 2, y + 0.5 - reach / 2
    first = math.floor(left), math.floor(top)
    part = image.crop((*first, first[0] + math.ceil(reach) + 1, first[1] + math.ceil(reach) + 1))
    inner = (left - first[0], top - first[1])
    canvas = part.resize((canvas_side(size),) * 2, Resampling.BILINEAR, (*inner, inner[0] + reach, inner[1] + reach))
    return to_tensor(canvas)


def image_sizes(files: FileList) -> Tensor:
    """Width and height of every file, shape (files, 2), from the headers; each file is opened once."""
    known: dict[bytes, tuple[int, int]] = {}
    for index, name in enumerate(files.names):
        if name not in known:
            with files.open(index) as file:
                known[name] = image_size(file, files.name(index))
    return torch.tensor([known[name] for name in files.names], dtype=torch.float64).reshape(-1, 2)


def within_images(files: FileList, joints: Tensor, visible: Tensor, sizes: Tensor) -> Tensor:
    """Which of the visible joints are within their images; a warning names the files of the others.

    Args:
        files: The image of every person.
        joints: Shape (people, joints, 2).
        visible: Shape (people, joints).
        sizes: Width and height of each image.

    Raises:
        CorruptDataError: If the coordinates of a visible joint are not finite.
    """
    strange = (visible & ~joints.isfinite().all(2)).any(1)
    if strange.any():
        raise CorruptDataError(f"a joint in {files.name(int(strange.nonzero()[0]))} has non-finite coordinates")
    inside = ((joints >= -0.5 - OUTSIDE_BY) & (joints <= sizes[:, None] - 0.5 + OUTSIDE_BY)).all(2)
    outside = visible & ~inside
    if outside.any():
        people = outside.any(1).nonzero().flatten().tolist()
        names = sorted(set(files.select(people).relative_names()))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{int(outside.sum())} joints are outside their images and are ignored: "
            f"{', '.join(names[:3])}{more} in {files.root}",
            AnnotationWarning,
            stacklevel=2,
        )
    return visible & inside


def boxes_around(joints: Tensor, visible: Tensor, sizes: Tensor) -> Tensor:
    """Squares around the visible joints, for data sets that do not annotate where a person is.

    Args:
        joints: Shape (people, joints, 2).
        visible: Shape (people, joints).
        sizes: Width and height of each image; with fewer than two visible joints, the square is the whole image.

    Returns:
        Shape (people, 3): centre x, centre y and side.
    """
    infinite = torch.full_like(joints, torch.inf)
    low = torch.where(visible[..., None], joints, infinite).amin(1)
    high = torch.where(visible[..., None], joints, -infinite).amax(1)
    side = (high - low).amax(1) * ENLARGE
    around_joints = torch.cat([(low + high) / 2, side[:, None]], 1)
    whole = torch.cat([(sizes - 1) / 2, sizes.amax(1, keepdim=True)], 1)
    return torch.where((side > 1)[:, None], around_joints, whole)
