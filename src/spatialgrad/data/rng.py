"""Random generators derived from their purpose, so that every point of a run can be reached directly."""

from __future__ import annotations

import hashlib

import torch


def generator_for(purpose: str, *parts: int) -> torch.Generator:
    """A CPU generator whose stream depends on `purpose` and `parts` and on nothing else.

    Args:
        purpose: Separates streams that share the same numbers, such as `"order"`.
        parts: What the stream is for, such as seed, epoch and batch.
    """
    # A hash, not a sum: seed 1 in epoch 0 must not repeat seed 0 in epoch 1.
    key = hashlib.blake2b(repr((purpose, *map(int, parts))).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little"))
