"""Drawn data sets for a machine without downloaded images: shapes, street scenes and people.

They are the same on every machine (up to the version of Pillow), need no licence, and make no claims: they are for
first steps, tests and the studies' scale `pocket`. Everything is drawn four times as large and resized, so that edges
are smooth. Coordinates are (x, y) in pixels, and the centre of the top left pixel is (0, 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.pose import People, PoseDataset, boxes_around
from spatialgrad.data.registry import Source
from spatialgrad.data.segmentation import SegmentationDataset
from spatialgrad.data.sets.lspet import SKELETON, torso_lengths
from spatialgrad.data.splits import MemorySplit

Random = np.random.RandomState
"""Not a Generator, whose numbers may change with a version of numpy."""
Point = Sequence[float] | np.ndarray
Colour = Sequence[float] | np.ndarray
ENLARGE = 4
NOISE = 7.0
"""Standard deviation of the pixels' noise."""
SKIN = np.array([205.0, 160.0, 130.0])


class Canvas:
    """A picture, and for each of its pixels the number of the last shape's class.

    Args:
        height: In pixels.
        width: In pixels.
        ground: The colour behind everything.
    """

    def __init__(self, height: int, width: int, ground: Colour) -> None:
        from PIL import Image, ImageDraw

        self.size = (width, height)
        large = (ENLARGE * width, ENLARGE * height)
        self._picture, self._classes = Image.new("RGB", large, _rgb(ground)), Image.new("L", large)
        self._draw = ImageDraw.Draw(self._picture), ImageDraw.Draw(self._classes)

    def disc(self, centre: Point, radius: float, colour: Colour, number: int = 0) -> None:
        """A filled circle."""
        x, y = centre
        self._on_both("ellipse", [(x - radius, y - radius), (x + radius, y + radius)], colour, number)

    def line(self, start: Point, end: Point, radius: float, colour: Colour, number: int = 0) -> None:
        """A thick line with round ends."""
        self._on_both("line", [start, end], colour, number, width=max(1, round(2 * radius * ENLARGE)))
        for point in (start, end):
            self.disc(point, radius, colour, number)

    def polygon(self, corners: Sequence[Point], colour: Colour, number: int = 0) -> None:
        """A filled polygon."""
        self._on_both("polygon", corners, colour, number)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour, number: int = 0) -> None:
        """A filled upright rectangle."""
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour, number)

    def picture(self, random: Random, *, light: float = 1.0) -> np.ndarray:
        """The pixels with noise, uint8 of shape (3, height, width)."""
        from PIL.Image import Resampling

        pixels = np.asarray(self._picture.resize(self.size, Resampling.BOX), dtype=float) * light
        noisy: np.ndarray = np.rint(np.clip(pixels + random.normal(0, NOISE, pixels.shape), 0, 255)).astype(np.uint8)
        return noisy.transpose(2, 0, 1)

    def classes(self) -> np.ndarray:
        """The class of every pixel, uint8 of shape (height, width)."""
        from PIL.Image import Resampling

        return np.asarray(self._classes.resize(self.size, Resampling.NEAREST))

    def _on_both(self, shape: str, points: Sequence[Point], colour: Colour, number: int, **options: Any) -> None:
        large = [tuple(float(ENLARGE * (value + 0.5)) for value in point) for point in points]
        for draw, fill in zip(self._draw, (_rgb(colour), number), strict=True):
            getattr(draw, shape)(large, fill=fill, **options)


def _rgb(colour: Colour) -> tuple[int, ...]:
    return tuple(round(min(max(float(value), 0), 255)) for value in colour)


SHAPE_NAMES = ("disc", "ring", "square", "triangle", "cross", "bar")
SHAPE_SIDE, NUM_SHAPES = 32, (1800, 300)


def read_shapes(place: Path) -> ImageDataset[MemorySplit]:
    """Draw colour images of six shapes, to pre-train backbones."""
    return ImageDataset(
        name="shapes-mini",
        description=f"drawn shapes, {NUM_SHAPES[0]:,}/{NUM_SHAPES[1]}",
        train=_shapes(NUM_SHAPES[0], seed=1),
        test=_shapes(NUM_SHAPES[1], seed=2),
        class_names=SHAPE_NAMES,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        image_size=SHAPE_SIDE,
    )


@cache
def _shapes(number: int, seed: int) -> MemorySplit:
    random = Random(seed)
    labels = np.arange(number) % len(SHAPE_NAMES)
    images = np.stack([draw_shape(SHAPE_NAMES[label], random) for label in labels])
    return MemorySplit(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def draw_shape(name: str, random: Random) -> np.ndarray:
    """One image of a shape: somewhere, of any size, colour and rotation, on a noisy ground."""
    ground = random.uniform(30, 225, 3)
    # Never the colour of the ground.
    colour = (ground + random.uniform(70, 180, 3) * random.choice([-1, 1], 3)) % 256
    radius = random.uniform(7, 11)
    centre = random.uniform(radius + 1, SHAPE_SIDE - 2 - radius, 2)
    angle = random.uniform(0, 2 * np.pi)
    canvas = Canvas(SHAPE_SIDE, SHAPE_SIDE, ground)

    def at(turn: float) -> np.ndarray:
        around = angle + 2 * np.pi * turn
        point: np.ndarray = centre + radius * np.array([np.cos(around), np.sin(around)])
        return point

    if name in ("disc", "ring"):
        canvas.disc(centre, radius, colour)
        if name == "ring":
            canvas.disc(centre, 0.55 * radius, ground)
    elif name in ("square", "triangle"):
        corners = 4 if name == "square" else 3
        canvas.polygon([at(corner / corners) for corner in range(corners)], colour)
    else:
        canvas.line(at(0), at(0.5), 2, colour)
        if name == "cross":
            canvas.line(at(0.25), at(0.75), 2, colour)
    return canvas.picture(random)


STREET_SIZE, NUM_STREETS = (88, 120), (128, 40)
STREET_CLASSES = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "road": (128, 64, 128),
    "grass": (60, 160, 60),
    "tree": (128, 128, 0),
    "car": (64, 0, 128),
    "person": (220, 60, 60),
}
SKY, BUILDING, ROAD, GRASS, TREE, CAR, PERSON = range(7)


def read_streets(place: Path) -> SegmentationDataset:
    """Draw street scenes with a class for every pixel."""
    return SegmentationDataset(
        name="streets-mini",
        description=f"drawn streets {STREET_SIZE[1]}×{STREET_SIZE[0]}, {NUM_STREETS[0]}/{NUM_STREETS[1]}",
        train=_streets(NUM_STREETS[0], seed=1),
        test=_streets(NUM_STREETS[1], seed=2),
        classes=STREET_CLASSES,
        image_size=STREET_SIZE,
        crop_size=STREET_SIZE,
    )


@cache
def _streets(number: int, seed: int) -> MemorySplit:
    random = Random(seed)
    images, masks = zip(*(Street(random).drawn() for _ in range(number)), strict=True)
    return MemorySplit(torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(masks)))


class Street:
    """A street from its middle, painted from far to near.

    Args:
        random: Where everything is, and how it looks.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.horizon = random.uniform(30, 46)
        self.vanishing = random.uniform(40, 80)
        self.canvas = Canvas(*STREET_SIZE, self._colour(130, 180, 235))
        self.canvas.box(-9, self.horizon, 129, 97, self._colour(85, 135, 60), GRASS)
        for _ in range(random.randint(2, 6)):
            self._building()
        self._road()
        # What stands lower is nearer, hides what is behind it, and is larger.
        for foot in sorted(random.uniform(self.horizon + 6, 84, random.randint(4, 9))):
            near = (foot - self.horizon) / (STREET_SIZE[0] - self.horizon)
            (self._tree, self._car, self._person)[random.randint(3)](foot, near)

    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """The picture and its classes, in any light."""
        return self.canvas.picture(self.random, light=self.random.uniform(0.7, 1.15)), self.canvas.classes()

    def _colour(self, *middle: float, spread: float = 25) -> np.ndarray:
        colour: np.ndarray = np.array(middle) + self.random.uniform(-spread, spread, 3)
        return colour

    def _road(self) -> None:
        top, left, right = self.vanishing, self.random.uniform(-40, 10), self.random.uniform(110, 160)
        corners = [(top - 2, self.horizon), (top + 2, self.horizon), (right, 97.0), (left, 97.0)]
        self.canvas.polygon(corners, self._colour(100, 100, 105, spread=12), ROAD)

    def _building(self) -> None:
        left, width = self.random.uniform(-10, 110), self.random.uniform(14, 34)
        top, bottom = self.random.uniform(4, self.horizon - 8), self.horizon + self.random.uniform(0, 4)
        self.canvas.box(left, top, left + width, bottom, self._colour(165, 115, 90, spread=40), BUILDING)
        glass = self._colour(70, 80, 100)
        for x in np.arange(left + 3, left + width - 4, 6):
            for y in np.arange(top + 3, bottom - 5, 7):
                self.canvas.box(x, y, x + 3, y + 4, glass, BUILDING)

    def _tree(self, foot: float, near: float) -> None:
        side, height = self.random.choice([-1, 1]), 14 + 40 * near
        x = self.vanishing + side * (18 + 60 * near + self.random.uniform(0, 20))
        self.canvas.line((x, foot), (x, foot - height), 1 + 2 * near, self._colour(95, 70, 45), TREE)
        crown, leaves = (5 + 13 * near) * self.random.uniform(0.8, 1.2), self._colour(45, 105, 40)
        for turn in self.random.uniform(0, 2 * np.pi, 4):
            centre = (x + 0.5 * crown * np.cos(turn), foot - height + 0.5 * crown * np.sin(turn))
            self.canvas.disc(centre, 0.8 * crown, leaves + self.random.uniform(-12, 12), TREE)

    def _car(self, foot: float, near: float) -> None:
        x, half = self.vanishing + self.random.uniform(-50, 50) * near, 5 + 17 * near
        paint, height = self.random.uniform(40, 230, 3), 0.55 * half
        self.canvas.box(x - half, foot - height, x + half, foot, paint, CAR)
        self.canvas.box(x - 0.65 * half, foot - 1.8 * height, x + 0.65 * half, foot - height, 0.8 * paint, CAR)
        window = (x - 0.5 * half, foot - 1.6 * height, x + 0.5 * half, foot - 1.05 * height)
        self.canvas.box(*window, self._colour(150, 185, 205), CAR)
        for wheel in (-0.6, 0.6):
            self.canvas.disc((x + wheel * half, foot), 0.3 * half, self._colour(30, 30, 30, spread=8), CAR)

    def _person(self, foot: float, near: float) -> None:
        x, height = self.vanishing + self.random.uniform(-75, 75) * near, 9 + 28 * near
        shirt, thick = self.random.uniform(30, 235, 3), 0.11 * height
        for step in (-0.1, 0.1):
            trousers = self._colour(45, 50, 75)
            self.canvas.line((x + step * height, foot), (x, foot - 0.5 * height), 0.6 * thick, trousers, PERSON)
        self.canvas.line((x, foot - 0.5 * height), (x, foot - 0.75 * height), thick, shirt, PERSON)
        self.canvas.disc((x, foot - 0.92 * height), 0.09 * height + 0.6, self._colour(*SKIN), PERSON)


FIGURE_SIDE, NUM_FIGURES = 96, (480, 96)


def read_figures(place: Path) -> PoseDataset:
    """Draw people with the joints of `lspet`; they face the viewer, so that their left is on the right."""
    return PoseDataset(
        name="figures-mini",
        description=f"drawn figures, {NUM_FIGURES[0]}/{NUM_FIGURES[1]}",
        train=_figures(NUM_FIGURES[0], seed=1),
        test=_figures(NUM_FIGURES[1], seed=2),
        skeleton=SKELETON,
        image_size=64,
    )


@cache
def _figures(number: int, seed: int) -> People:
    random = Random(seed)
    poses = [draw_pose(random) for _ in range(number)]
    images = torch.from_numpy(np.stack([draw_person(pose, random) for pose in poses]))
    joints = torch.from_numpy(np.stack(poses))
    visible = torch.ones(joints.shape[:2], dtype=torch.bool)
    sizes = torch.full((number, 2), float(FIGURE_SIDE), dtype=torch.float64)
    return People(images, joints, visible, boxes_around(joints, visible, sizes), torso_lengths(joints, visible))


def draw_pose(random: Random) -> np.ndarray:
    """The joints of a person, in the order of the skeleton, shape (joints, 2); all of them within the image."""
    while True:
        joints = _pose(random)
        low, high = joints.min(0), joints.max(0)
        # Centred up to a shift that the size allows.
        room = FIGURE_SIDE - 13 - (high - low)
        if (room > 0).all():
            shifted: np.ndarray = joints - low + 6 + room * random.uniform(0.2, 0.8, 2)
            return shifted


def draw_person(joints: np.ndarray, random: Random) -> np.ndarray:
    """An image of a person with these joints, before a ground with other things on it."""
    canvas = Canvas(FIGURE_SIDE, FIGURE_SIDE, random.uniform(60, 200, 3))
    for _ in range(6):
        left, top, across, down = random.uniform((-20, -20, 8, 8), (FIGURE_SIDE, FIGURE_SIDE, 45, 45))
        canvas.box(left, top, left + across, top + down, random.uniform(40, 215, 3))
    at = dict(zip(SKELETON.joints, joints, strict=True))
    torso = float(np.hypot(*(at["neck"] - at["right hip"])))
    shirt, trousers, skin = random.uniform(20, 235, 3), random.uniform(20, 235, 3), random.uniform(0.6, 1.15) * SKIN
    for side in ("left", "right"):
        canvas.line(at[f"{side} hip"], at[f"{side} knee"], 0.14 * torso, trousers)
        canvas.line(at[f"{side} knee"], at[f"{side} ankle"], 0.14 * torso, trousers)
    for start, end in (("left shoulder", "left hip"), ("right shoulder", "right hip"), ("neck", "left hip")):
        canvas.line(at[start], at[end], 0.2 * torso, shirt)
    for side in ("left", "right"):
        canvas.line(at[f"{side} shoulder"], at[f"{side} elbow"], 0.12 * torso, 0.75 * shirt)
        canvas.line(at[f"{side} elbow"], at[f"{side} wrist"], 0.1 * torso, skin)
    neck, top = at["neck"], at["head top"]
    canvas.disc(neck + 0.6 * (top - neck), 0.42 * float(np.hypot(*(top - neck))), skin)
    return canvas.picture(random)


def _pose(random: Random) -> np.ndarray:
    torso = random.uniform(17, 24)
    lean = random.uniform(-0.5, 0.5)
    pelvis = np.zeros(2)
    neck = pelvis + torso * _towards(np.pi + lean)
    head = neck + 0.62 * torso * _towards(np.pi + lean + random.uniform(-0.3, 0.3))
    across = _towards(lean + np.pi / 2)
    found = {"neck": neck, "head top": head}
    for side, sign in (("left", 1), ("right", -1)):
        hip = found[f"{side} hip"] = pelvis + sign * 0.24 * torso * across
        thigh = sign * random.uniform(-0.1, 0.9)
        knee = found[f"{side} knee"] = hip + 0.85 * torso * _towards(thigh)
        found[f"{side} ankle"] = knee + 0.85 * torso * _towards(thigh - sign * random.uniform(0, 0.9))
        shoulder = found[f"{side} shoulder"] = neck + sign * 0.34 * torso * across + 0.1 * torso * _towards(lean)
        # From hanging down to raised.
        upper = sign * random.uniform(0.1, 2.8)
        elbow = found[f"{side} elbow"] = shoulder + 0.62 * torso * _towards(upper)
        found[f"{side} wrist"] = elbow + 0.58 * torso * _towards(upper + sign * random.uniform(-0.3, 1.4))
    return np.stack([found[name] for name in SKELETON.joints])


def _towards(angle: float) -> np.ndarray:
    """The direction at an angle from straight down, growing to the right of the picture."""
    return np.array([np.sin(angle), np.cos(angle)])


def _source(name: str, description: str, read: Callable[[Path], Any], metric: str = "accuracy") -> Source:
    return Source(
        name=name,
        description=f"{description}, generated by the package",
        places=[__file__],  # always there
        read=read,
        metric=metric,
    )


SHAPES = _source("shapes-mini", "1,800 + 300 drawn colour images of 32×32, 6 shapes", read_shapes)
STREETS = _source("streets-mini", "128 + 40 drawn street scenes of 120×88, 7 pixel classes", read_streets, "miou")
FIGURES = _source("figures-mini", "480 + 96 drawn people, 14 joints", read_figures, SKELETON.metric)
