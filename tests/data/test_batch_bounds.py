"""Which images make up each batch of an epoch, for every rank."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.data.batches import batch_bounds, check_shares, epoch_order, rank_bounds


@settings(deadline=None)
@given(
    count=st.integers(1, 300),
    per_rank=st.integers(1, 16),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_ranks_share_an_epoch_without_overlap_or_loss(count, per_rank, world_size, drop_last, seed):
    batch_size = per_rank * world_size
    bounds = batch_bounds(count, batch_size, world_size=world_size, drop_last=drop_last)
    order = epoch_order(count, seed=seed, epoch=3)
    seen = []
    for bound in bounds:
        shares = [rank_bounds(*bound, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert (shares[0][0], shares[-1][1]) == bound
        assert all(left[1] == right[0] for left, right in itertools.pairwise(shares))
        sizes = [last - first for first, last in shares]
        assert max(sizes) - min(sizes) <= 1
        if count >= batch_size:
            assert min(sizes) >= min(2, per_rank)
        seen += [order[first:last] for first, last in shares]
    images = torch.cat(seen).tolist() if seen else []
    assert len(set(images)) == len(images)
    expected = count // batch_size * batch_size if drop_last else count
    assert len(images) == expected


@pytest.mark.parametrize(
    ("count", "world_size", "drop_last", "sizes"),
    [
        (20, 1, False, [8, 8, 4]),
        (20, 1, True, [8, 8]),
        (17, 1, False, [8, 9]),  # batch normalization cannot train on one image
        (18, 1, False, [8, 8, 2]),
        (19, 2, False, [8, 11]),
        (20, 2, False, [8, 8, 4]),
        (5, 4, False, [5]),
    ],
)
def test_sizes_of_batches(count, world_size, drop_last, sizes):
    bounds = batch_bounds(count, 8, world_size=world_size, drop_last=drop_last)
    assert [stop - start for start, stop in bounds] == sizes


def test_the_order_depends_on_seed_and_epoch_and_nothing_else():
    first = epoch_order(1000, seed=1, epoch=2)
    # Held, so that no change of ours can give a resumed run another order.
    assert first[:8].tolist() == [819, 84, 674, 267, 387, 248, 821, 271]
    torch.rand(5)
    assert torch.equal(first, epoch_order(1000, seed=1, epoch=2))
    assert not torch.equal(first, epoch_order(1000, seed=1, epoch=3))
    assert not torch.equal(first, epoch_order(1000, seed=2, epoch=1))
    assert first.sort().values.tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("batch_size", "rank", "world_size"), [(0, 0, 1), (-2, 0, 1), (7, 0, 2), (8, 2, 2), (8, -1, 2), (8, 0, 0)]
)
def test_shares_that_do_not_add_up_are_refused(batch_size, rank, world_size):
    with pytest.raises(ValueError, match="world size"):
        check_shares(batch_size, rank=rank, world_size=world_size)
