"""Drawn people with their joints, for a first pose estimation on a machine without downloaded images.

The joints and the metric are those of `lspet`. People face the viewer: their left is on the right of the picture.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.drawing import box, disc, line, paint_, to_bytes
from spatialgrad.data.files.memory import MemoryFiles
from spatialgrad.data.person_crops import boxes_around
from spatialgrad.data.pose import People, PoseDataset
from spatialgrad.data.sets.lspet import SKELETON, torso_lengths
from spatialgrad.data.source import generated

NAME, SIDE = "figures-mini", 96
NUM_TRAIN, NUM_TEST = 480, 96
NOISE = 7.0
"""Standard deviation of the pixels' noise."""


def read(place: Path) -> PoseDataset:
    """Draw all people, the same ones every time."""
    return PoseDataset(
        name=NAME,
        description=f"drawn figures, {NUM_TRAIN}/{NUM_TEST}",
        train=_split("train", NUM_TRAIN, seed=1),
        test=_split("test", NUM_TEST, seed=2),
        skeleton=SKELETON,
        image_size=64,
    )


@cache
def _split(name: str, number: int, seed: int) -> People:
    # Not a Generator, whose numbers may change with a version of numpy.
    random = np.random.RandomState(seed)
    poses = [draw_pose(random) for _ in range(number)]
    files = MemoryFiles.named(f"{NAME}/{name}", [_as_png(draw_person(pose, random)) for pose in poses])
    joints = torch.from_numpy(np.stack(poses))
    visible = torch.ones(joints.shape[:2], dtype=torch.bool)
    sizes = torch.full((number, 2), float(SIDE), dtype=torch.float64)
    return People(files, joints, visible, boxes_around(joints, visible, sizes), torso_lengths(joints, visible))


def draw_pose(random: np.random.RandomState) -> np.ndarray:
    """The joints of a person, in the order of the skeleton, shape (joints, 2); all of them within the image."""
    while True:
        joints = _pose(random)
        low, high = joints.min(0), joints.max(0)
        # Centred up to a shift that the size allows.
        room = SIDE - 13 - (high - low)
        if (room > 0).all():
            shifted: np.ndarray = joints - low + 6 + room * random.uniform(0.2, 0.8, 2)
            return shifted


def draw_person(joints: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """An image of a person with these joints, before a ground with other things on it: height × width × 3."""
    size = (SIDE, SIDE)
    picture = np.ones((*size, 3)) * random.uniform(60, 200, 3)
    for _ in range(6):
        left, top, across, down = random.uniform((-20, -20, 8, 8), (SIDE, SIDE, 45, 45))
        paint_(picture, box(size, left, top, left + across, top + down), random.uniform(40, 215, 3))
    at = {name: (joint[0], joint[1]) for name, joint in zip(SKELETON.joints, joints, strict=True)}
    torso = float(np.hypot(*(joints[12] - joints[2])))
    shirt, trousers, skin = random.uniform(20, 235, 3), random.uniform(20, 235, 3), random.uniform(0.6, 1.15) * _SKIN
    for side in ("left", "right"):
        ankle, knee, hip = (at[f"{side} {joint}"] for joint in ("ankle", "knee", "hip"))
        for limb in ((hip, knee), (knee, ankle)):
            paint_(picture, line(size, *limb, 0.14 * torso), trousers)
    for start, end in (("left shoulder", "left hip"), ("right shoulder", "right hip"), ("neck", "left hip")):
        paint_(picture, line(size, at[start], at[end], 0.2 * torso), shirt)
    for side in ("left", "right"):
        wrist, elbow, shoulder = (at[f"{side} {joint}"] for joint in ("wrist", "elbow", "shoulder"))
        paint_(picture, line(size, shoulder, elbow, 0.12 * torso), 0.75 * shirt)
        paint_(picture, line(size, elbow, wrist, 0.1 * torso), skin)
    neck, top = np.array(at["neck"]), np.array(at["head top"])
    middle = neck + 0.6 * (top - neck)
    paint_(picture, disc(size, (middle[0], middle[1]), 0.42 * float(np.hypot(*(top - neck)))), skin)
    return picture + random.normal(0, NOISE, picture.shape)


_SKIN = np.array([205.0, 160.0, 130.0])


def _pose(random: np.random.RandomState) -> np.ndarray:
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


def _as_png(picture: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(to_bytes(picture).transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


SOURCE = generated(
    name=NAME,
    description=f"{NUM_TRAIN} + {NUM_TEST} drawn people, 14 joints",
    module=Path(__file__),
    read=read,
    metric=SKELETON.metric,
)
