"""Drawn street scenes with a class for every pixel, for a first segmentation on a machine without downloaded images."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.drawing import box, disc, line, paint_, pixels, polygon, to_bytes
from spatialgrad.data.segmentation import MaskMemory, SegmentationDataset
from spatialgrad.data.source import generated

NAME, SIZE = "streets-mini", (88, 120)
CLASSES = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "road": (128, 64, 128),
    "grass": (60, 160, 60),
    "tree": (128, 128, 0),
    "car": (64, 0, 128),
    "person": (220, 60, 60),
}
NUM_TRAIN, NUM_TEST = 128, 40
NOISE = 7.0
"""Standard deviation of the pixels' noise."""


def read(place: Path) -> SegmentationDataset:
    """Draw all scenes, the same ones every time."""
    return SegmentationDataset(
        name=NAME,
        description=f"drawn streets {SIZE[1]}×{SIZE[0]}, {NUM_TRAIN}/{NUM_TEST}",
        train=_split("train", NUM_TRAIN, seed=1),
        test=_split("test", NUM_TEST, seed=2),
        classes=CLASSES,
        image_size=SIZE,
        crop_size=SIZE,
    )


@cache
def _split(name: str, number: int, seed: int) -> MaskMemory:
    # Not a Generator, whose numbers may change with a version of numpy.
    random = np.random.RandomState(seed)
    scenes = [Scene(random) for _ in range(number)]
    images, masks = np.stack([to_bytes(each.picture) for each in scenes]), np.stack([each.mask for each in scenes])
    names = tuple(f"{NAME}/{name}/{index + 1:03d}.png" for index in range(number))
    return MaskMemory(torch.from_numpy(images), torch.from_numpy(masks), names)


class Scene:
    """A street from its middle, painted from far to near, with the class of every pixel.

    Args:
        random: Where everything is, and how it looks.
    """

    def __init__(self, random: np.random.RandomState) -> None:
        self.random = random
        self.picture = np.zeros((*SIZE, 3))
        self.mask = np.zeros(SIZE, dtype=np.uint8)
        self.horizon = random.uniform(30, 46)
        self.vanishing = random.uniform(40, 80)
        self._ground()
        for _ in range(random.randint(2, 6)):
            self._building()
        self._road()
        # What stands lower is nearer, hides what is behind it, and is larger.
        for foot in sorted(random.uniform(self.horizon + 6, 84, random.randint(4, 9))):
            (self._tree, self._car, self._person)[random.randint(3)](foot)
        light = random.uniform(0.7, 1.15)
        self.picture = self.picture * light + random.normal(0, NOISE, self.picture.shape)

    def _add(self, name: str, shape: np.ndarray, colour: np.ndarray) -> None:
        paint_(self.picture, shape, colour)
        self.mask[shape >= 0.5] = list(CLASSES).index(name)

    def _near(self, foot: float) -> float:
        """The size of what stands at this height of the picture."""
        return (foot - self.horizon) / (SIZE[0] - self.horizon)

    def _colour(self, *middle: float, spread: float = 25) -> np.ndarray:
        return np.array(middle) + self.random.uniform(-spread, spread, 3)

    def _ground(self) -> None:
        height = np.linspace(0, 1, SIZE[0])[:, None, None]
        self._add("sky", np.ones(SIZE), self._colour(110, 160, 215) + 60 * height * np.ones((1, SIZE[1], 1)))
        self._add("grass", box(SIZE, -9, self.horizon, 129, 97), self._colour(85, 135, 60))

    def _road(self) -> None:
        top, left, right = self.vanishing, self.random.uniform(-40, 10), self.random.uniform(110, 160)
        corners = [(top - 2, self.horizon), (top + 2, self.horizon), (right, 97.0), (left, 97.0)]
        self._add("road", polygon(SIZE, corners), self._colour(100, 100, 105, spread=12))

    def _building(self) -> None:
        left, width = self.random.uniform(-10, 110), self.random.uniform(14, 34)
        top, bottom = self.random.uniform(4, self.horizon - 8), self.horizon + self.random.uniform(0, 4)
        self._add("building", box(SIZE, left, top, left + width, bottom), self._colour(165, 115, 90, spread=40))
        x, y = pixels(SIZE)
        windows = ((x - left) % 6 > 3) & ((y - top) % 7 > 3) & (x < left + width - 2) & (y < bottom - 3)
        windows &= (x > left) & (y > top)
        self._add("building", windows.astype(float), self._colour(70, 80, 100))

    def _tree(self, foot: float) -> None:
        near, side = self._near(foot), self.random.choice([-1, 1])
        x = self.vanishing + side * (18 + 60 * near + self.random.uniform(0, 20))
        height = 14 + 40 * near
        self._add("tree", line(SIZE, (x, foot), (x, foot - height), 1 + 2 * near), self._colour(95, 70, 45))
        crown, leaves = (5 + 13 * near) * self.random.uniform(0.8, 1.2), self._colour(45, 105, 40)
        for turn in self.random.uniform(0, 2 * np.pi, 4):
            centre = (x + 0.5 * crown * np.cos(turn), foot - height + 0.5 * crown * np.sin(turn))
            self._add("tree", disc(SIZE, centre, 0.8 * crown), leaves + self.random.uniform(-12, 12))

    def _car(self, foot: float) -> None:
        near = self._near(foot)
        x, half = self.vanishing + self.random.uniform(-50, 50) * near, 5 + 17 * near
        paint, height = self.random.uniform(40, 230, 3), 0.55 * half
        self._add("car", box(SIZE, x - half, foot - height, x + half, foot), paint)
        self._add("car", box(SIZE, x - 0.65 * half, foot - 1.8 * height, x + 0.65 * half, foot - height), 0.8 * paint)
        window = (x - 0.5 * half, foot - 1.6 * height, x + 0.5 * half, foot - 1.05 * height)
        self._add("car", box(SIZE, *window), self._colour(150, 185, 205))
        for wheel in (-0.6, 0.6):
            self._add("car", disc(SIZE, (x + wheel * half, foot), 0.3 * half), self._colour(30, 30, 30, spread=8))

    def _person(self, foot: float) -> None:
        near = self._near(foot)
        x, height = self.vanishing + self.random.uniform(-75, 75) * near, 9 + 28 * near
        shirt, skin = self.random.uniform(30, 235, 3), self._colour(205, 160, 130)
        thick = 0.11 * height
        for step in (-0.1, 0.1):
            legs = line(SIZE, (x + step * height, foot), (x, foot - 0.5 * height), 0.6 * thick)
            self._add("person", legs, self._colour(45, 50, 75))
        self._add("person", line(SIZE, (x, foot - 0.5 * height), (x, foot - 0.75 * height), thick), shirt)
        self._add("person", disc(SIZE, (x, foot - 0.92 * height), 0.09 * height + 0.6), skin)


SOURCE = generated(
    name=NAME,
    description=f"{NUM_TRAIN} + {NUM_TEST} drawn street scenes of 120×88, 7 pixel classes",
    module=Path(__file__),
    read=read,
    metric="miou",
)
