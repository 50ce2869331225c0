"""Totals of a checkpoint add up to the same, whatever the number of processes that resume it."""

from types import SimpleNamespace

import pytest
import torch
from spatialgrad.train.engine.evaluation import own_sums

from spatialgrad.train.tasks.base import add_


def saved(world_size):
    return [{"loss": torch.tensor(1.5 + rank), "right": torch.tensor([rank, 7])} for rank in range(world_size)]


def resumed(every, world_size):
    """The totals of each process."""
    ranks = [SimpleNamespace(world_size=world_size, rank=rank, is_first=rank == 0) for rank in range(world_size)]
    return [own_sums(every, SimpleNamespace(**vars(rank), device=torch.device("cpu"))) for rank in ranks]


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("now", [1, 2, 3])
def test_totals_count_once(before, now):
    every, found = saved(before), resumed(saved(before), now)
    whole, again = {}, {}
    for sums in every:
        add_(whole, sums)
    for sums in found:
        add_(again, sums)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_the_same_processes_continue_with_their_own():
    assert [float(sums["loss"]) for sums in resumed(saved(3), 3)] == [1.5, 2.5, 3.5]
