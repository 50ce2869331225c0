"""Which joints a pose data set annotates, and how they belong together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """The joints of a data set, and how predictions of them are scored."""

    joints: tuple[str, ...]
    """Their names, in the order of the annotations; those of the body's sides begin with `left` and `right`."""
    limbs: tuple[tuple[int, int], ...]
    """Pairs of joints that a picture connects."""
    metric: str
    """`pckh` (lengths are relative to the head) or `pck` (relative to the torso)."""
    threshold: float
    """Largest distance of a right prediction, relative to that length."""
    scored: tuple[int, ...]
    """The joints that count in the metric."""

    @property
    def num_joints(self) -> int:
        """How many joints there are: the heat maps of a network."""
        return len(self.joints)

    @property
    def mirrored(self) -> tuple[int, ...]:
        """For every joint, the one that takes its place in a mirrored picture."""
        return tuple(self.joints.index(_other_side(name)) for name in self.joints)

    def side(self, joint: int) -> str:
        """`left`, `right` or `middle`."""
        first = self.joints[joint].split()[0]
        return first if first in ("left", "right") else "middle"


def _other_side(name: str) -> str:
    side, _, rest = name.partition(" ")
    return f"{ {'left': 'right', 'right': 'left'}[side] } {rest}" if side in ("left", "right") else name


LSP = Skeleton(
    joints=(
        "right ankle",
        "right knee",
        "right hip",
        "left hip",
        "left knee",
        "left ankle",
        "right wrist",
        "right elbow",
        "right shoulder",
        "left shoulder",
        "left elbow",
        "left wrist",
        "neck",
        "head top",
    ),
    limbs=(
        (0, 1),
        (1, 2),
        (3, 4),
        (4, 5),
        (6, 7),
        (7, 8),
        (9, 10),
        (10, 11),
        (2, 8),
        (3, 9),
        (2, 3),
        (8, 12),
        (9, 12),
        (12, 13),
    ),
    metric="pck",
    threshold=0.2,
    scored=tuple(range(14)),
)
"""Leeds Sports Pose: 14 joints, PCK at 0.2 of the torso."""

MPII = Skeleton(
    joints=(
        "right ankle",
        "right knee",
        "right hip",
        "left hip",
        "left knee",
        "left ankle",
        "pelvis",
        "thorax",
        "upper neck",
        "head top",
        "right wrist",
        "right elbow",
        "right shoulder",
        "left shoulder",
        "left elbow",
        "left wrist",
    ),
    limbs=(
        (0, 1),
        (1, 2),
        (2, 6),
        (6, 3),
        (3, 4),
        (4, 5),
        (10, 11),
        (11, 12),
        (12, 7),
        (7, 13),
        (13, 14),
        (14, 15),
        (6, 7),
        (7, 8),
        (8, 9),
    ),
    metric="pckh",
    threshold=0.5,
    # Its usual evaluation leaves out the pelvis and the thorax.
    scored=(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15),
)
"""MPII Human Pose: 16 joints, PCKh at 0.5 of the head."""
