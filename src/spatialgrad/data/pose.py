"""People in images: the splits of a pose data set, and what is made of one person for a batch.

Coordinates are (x, y) in pixels, and the centre of the top left pixel is (0, 0), as in `paired.py`.

A person's square is cut out of the file with a margin (the canvas), within which augmentation turns, resizes and
mirrors. Files are decoded when they are needed; canvases are kept if those of all people fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spatialgrad.data.files.image_files import ImageFiles
from spatialgrad.data.files.images import decode
from spatialgrad.data.person_crops import canvas_side, cut_out, place_on_canvas
from spatialgrad.data.rng import generator_for
from spatialgrad.data.skeleton import Skeleton
from spatialgrad.data.warp import Move, affine, move_points, warp_image

MAX_BYTES_KEPT = 1 << 30
"""Canvases of a split are kept in memory up to this size."""
MAX_ROTATION = 2.0
"""Largest angle of augmentation, as a multiple of its standard deviation."""
ROTATION_SHARE = 0.6
"""Share of the people that are turned at all, as in the training that the paper cites."""


@dataclass(frozen=True, eq=False)
class People:
    """One split of a pose data set.

    Attributes:
        files: An image file for every person; a file with several people is there several times.
        joints: Shape (people, joints, 2), float64: where each joint is in the image.
        visible: Shape (people, joints): whether it is annotated and within the image.
        boxes: Shape (people, 3), float64: centre x, centre y and side of the square that holds the person.
        lengths: Shape (people,), float64: what the metric measures distances by, in pixels of the image; 0 where it
            is not known.
    """

    files: ImageFiles
    joints: Tensor
    visible: Tensor
    boxes: Tensor
    lengths: Tensor
    _kept: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        number, joints = self.visible.shape
        right = {"joints": (number, joints, 2), "boxes": (number, 3), "lengths": (number,)}
        for name, shape in right.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(f"{name} must have the shape {shape}, not {tuple(getattr(self, name).shape)}")
        if len(self.files.names) != number:
            raise ValueError(f"{len(self.files.names)} files for {number} people")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self) -> dict[str, Any]:
        # What goes to worker processes: they decode what they need.
        return {**self.__dict__, "_kept": {}}

    def select(self, indices: Tensor) -> People:
        """The people at `indices`, in that order."""
        return People(
            self.files.select(indices.numpy()),
            self.joints[indices],
            self.visible[indices],
            self.boxes[indices],
            self.lengths[indices],
        )

    def canvas(self, index: int, size: int) -> Tensor:
        """A person's canvas, in whose middle the square has the side `size`: uint8, shape (3, canvas, canvas)."""
        key = (size, index)
        if key not in self._kept:
            name = self.files.name(index)
            canvas = cut_out(decode(self.files.read(index), name), self.boxes[index].tolist(), size, name)
            if len(self) * canvas.numel() > MAX_BYTES_KEPT:
                return canvas
            self._kept[key] = canvas
        return self._kept[key]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoseDataset:
    """A pose data set."""

    name: str
    """The name it is loaded by, such as `lspet`."""
    description: str
    """What a report must call it: a subset says that it is one."""
    train: People
    test: People
    skeleton: Skeleton
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel for pixels in [0, 1]."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel for pixels in [0, 1]."""
    image_size: int = 256
    """Height and width of the images in a batch."""

    def __post_init__(self) -> None:
        for name, split in (("train", self.train), ("test", self.test)):
            if not len(split):
                raise ValueError(f"{self.name}: the {name} split has no people")
            if split.visible.shape[1] != self.skeleton.num_joints:
                raise ValueError(f"{self.name}: {split.visible.shape[1]} joints, not {self.skeleton.num_joints}")


@dataclass(frozen=True, kw_only=True)
class PoseAugmentation:
    """What is done to training images."""

    scale: float = 0.25
    """Standard deviation of the factor on the person's square, which is within 1 ± this."""
    rotation: float = 30.0
    """Standard deviation, in degrees, of the angle by which 60 % of the people are turned; at most twice this."""
    flip: bool = True
    """Mirror half of the people; left joints become right ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonMaker:
    """Makes what a batch holds of a person; a function of seed, epoch and index, in any process."""

    people: People
    skeleton: Skeleton
    size: int
    """Height and width of the image."""
    augmentation: PoseAugmentation | None = None
    """None for the person as it is."""
    seed: int = 0
    epoch: int = 0

    def __call__(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Image (uint8), joints in it, which of them are visible, and the length for the metric."""
        people, size = self.people, self.size
        canvas = people.canvas(index, size)
        factor, joints = place_on_canvas(people.joints[index], people.boxes[index], size)
        visible, length = people.visible[index], people.lengths[index] * factor
        if self.augmentation is None:
            margin = (canvas_side(size) - size) // 2
            image = canvas[:, margin : margin + size, margin : margin + size].clone()
            return image, (joints - margin).float(), visible, length.float()
        move = draw_person_move(self.augmentation, seed=self.seed, epoch=self.epoch, index=index)
        image, joints, visible = move_person(canvas, joints, visible, move, size, self.skeleton)
        return image, joints.float(), visible, (length * move.scale).float()


def draw_person_move(augmentation: PoseAugmentation, *, seed: int, epoch: int, index: int) -> Move:
    """Draw what is done to a person in an epoch: a function of the arguments and of nothing else."""
    numbers = torch.rand(4, generator=generator_for("person", seed, epoch, index), dtype=torch.float64)
    # Normal numbers from uniform ones: all of them are always drawn, and from a single call.
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
    """Turn, resize and mirror a person about the middle of its canvas, image and joints together.

    Args:
        canvas: uint8, shape (3, canvas, canvas).
        joints: Shape (joints, 2), on the canvas.
        visible: Shape (joints,).
        move: What to do.
        size: Height and width of the result.
        skeleton: Says which joints change places in a mirror.

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
    """Let left and right joints change places."""
    return values.index_select(dim, torch.tensor(skeleton.mirrored, device=values.device))
