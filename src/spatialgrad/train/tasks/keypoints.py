"""The share of right joints (PCK, PCKh), as totals that add up over batches and processes."""

from __future__ import annotations

import torch
from torch import Tensor


def count_right(
    predicted: Tensor, joints: Tensor, visible: Tensor, lengths: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """Count, for each joint, the right predictions and the people in whom it can be scored.

    A prediction is right if its distance from the truth is at most `threshold` times the person's length: of the head
    for PCKh, of the torso for PCK.

    Args:
        predicted: Shape (people, joints, 2).
        joints: The truth, of the same shape.
        visible: Shape (people, joints): what is annotated.
        lengths: Shape (people,): people without a length (0) are not scored.
        threshold: Relative to the length.

    Returns:
        Two tensors of shape (joints,), int64.
    """
    distances = torch.linalg.vector_norm(predicted - joints, dim=-1)
    scored = visible & (lengths > 0)[:, None]
    right = scored & (distances <= threshold * lengths[:, None])
    return right.sum(0), scored.sum(0)


def mean_over_joints(right: Tensor, scored: Tensor, which: tuple[int, ...]) -> float:
    """The mean of the joints' shares; joints that no one has are left out, and without any it is 0.

    Args:
        right: Of `count_right`, summed over all people.
        scored: The same.
        which: The joints that count.
    """
    shares = [int(right[joint]) / int(scored[joint]) for joint in which if scored[joint]]
    return sum(shares) / len(shares) if shares else 0.0
