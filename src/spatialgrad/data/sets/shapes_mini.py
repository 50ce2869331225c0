"""Drawn colour images of six shapes, to pre-train backbones on a machine without any downloaded images."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset, MemorySplit
from spatialgrad.data.drawing import disc, line, paint_, polygon, to_bytes
from spatialgrad.data.source import generated

NAME, SIDE = "shapes-mini", 32
CLASS_NAMES = ("disc", "ring", "square", "triangle", "cross", "bar")
NUM_TRAIN, NUM_TEST = 1800, 300


def read(place: Path) -> ImageDataset[MemorySplit]:
    """Draw all images, the same ones every time."""
    return ImageDataset(
        name=NAME,
        description=f"drawn shapes, {NUM_TRAIN:,}/{NUM_TEST}",
        train=_split(NUM_TRAIN, seed=1),
        test=_split(NUM_TEST, seed=2),
        class_names=CLASS_NAMES,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        image_size=SIDE,
    )


@cache
def _split(number: int, seed: int) -> MemorySplit:
    # Not a Generator, whose numbers may change with a version of numpy.
    random = np.random.RandomState(seed)
    labels = np.arange(number) % len(CLASS_NAMES)
    images = np.stack([draw(CLASS_NAMES[label], random) for label in labels])
    return MemorySplit(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def draw(name: str, random: np.random.RandomState) -> np.ndarray:
    """One image of a shape: somewhere, of any size, colour and rotation, on a noisy ground."""
    size = (SIDE, SIDE)
    ground = random.uniform(30, 225, 3)
    picture = ground + random.normal(0, 8, (*size, 3))
    # Never the colour of the ground.
    colour = (ground + random.uniform(70, 180, 3) * random.choice([-1, 1], 3)) % 256
    radius = random.uniform(7, 11)
    centre = random.uniform(radius + 1, SIDE - 2 - radius, 2)
    angle = random.uniform(0, 2 * np.pi)

    def at(turn: float, distance: float) -> tuple[float, float]:
        around = angle + 2 * np.pi * turn
        return centre[0] + distance * np.cos(around), centre[1] + distance * np.sin(around)

    middle = (centre[0], centre[1])
    if name in ("disc", "ring"):
        shape = disc(size, middle, radius)
        shape = shape - disc(size, middle, 0.55 * radius) if name == "ring" else shape
    elif name in ("square", "triangle"):
        corners = 4 if name == "square" else 3
        shape = polygon(size, [at(corner / corners, radius) for corner in range(corners)])
    else:
        shape = line(size, at(0, radius), at(0.5, radius), 2)
        shape = np.maximum(shape, line(size, at(0.25, radius), at(0.75, radius), 2)) if name == "cross" else shape
    paint_(picture, shape, colour)
    return to_bytes(picture)


SOURCE = generated(
    name=NAME,
    description=f"{NUM_TRAIN:,} + {NUM_TEST} drawn colour images of 32×32, 6 shapes",
    module=Path(__file__),
    read=read,
)
