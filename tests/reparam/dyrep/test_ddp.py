"""Two real processes grow and cut the same network, and refuse a stale wrapper."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spatialgrad.reparam import DyRep, DyRepConfig
from support.reparam import SmallNet, batches, train

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(200)]


def weights(model):
    return {name: value.detach().clone() for name, value in model.module.named_parameters()}


def grow_and_cut(epochs):
    torch.manual_seed(dist.get_rank())  # other weights, which the wrapper makes equal, and another random state
    model = DistributedDataParallel(SmallNet(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    dyrep = DyRep(model, optimizer, DyRepConfig(interval=1, spread=1e-3))
    data = batches(3, seed=dist.get_rank())  # each process has its own images
    history, refused = [], 0
    for _ in range(epochs):
        train(model, optimizer, data)
        adjustment = dyrep.adjust(data)
        history.append((adjustment.grown, adjustment.cut))
        after_adjusting = model.module.state_dict()
        try:
            model(data[0][0])
        except RuntimeError as error:
            refused += "dyrep.rewrap(model)" in str(error)
        model = dyrep.rewrap(model)
    settings = model.gradient_as_bucket_view
    adjusted = {name: value.clone() for name, value in after_adjusting.items()}
    train(model, optimizer, data)
    return history, refused, settings, adjusted, weights(model), dyrep.state_dict()["structure"]


@pytest.mark.bits
def test_two_ranks_stay_identical(ranks):
    first, second = ranks.values(grow_and_cut, 5)
    history, refused, settings, adjusted, trained, structure = first
    assert history == second[0]
    assert all(grown is not None for grown, _ in history)
    assert any(cut for _, cut in history)
    assert refused == second[1] == 5
    assert settings
    assert structure == second[5]
    # Right after an adjustment everything is the same on both, statistics included; after more steps all weights are.
    for mine, other in ((adjusted, second[3]), (trained, second[4])):
        assert list(mine) == list(other)
        assert all(torch.equal(value, other[name]) for name, value in mine.items())


def grow_in_two_groups():
    """Each group has images, weights and statistics of its own."""
    rank = dist.get_rank()
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    torch.manual_seed(rank // 2)
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dyrep = DyRep(model, optimizer, DyRepConfig(interval=1, spread=1e-3), process_group=group)
    data = batches(2, seed=rank)
    train(model, optimizer, data)
    own = {name: total / count for name, (total, count) in dyrep.state_dict()["scores"].items()}
    scores = dyrep.scores
    dyrep.adjust(data)
    return own, scores, {name: value.clone() for name, value in model.named_buffers()}


def test_two_groups_grow_on_their_own(four_ranks):
    results = four_ranks.values(grow_in_two_groups)
    for first, second in (results[:2], results[2:]):
        for name, score in first[1].items():
            assert score == second[1][name]
            assert score == pytest.approx((first[0][name] + second[0][name]) / 2, rel=1e-4, abs=1e-8)
        assert all(torch.equal(value, second[2][name]) for name, value in first[2].items())
    # What the groups do not share: had one overwritten the other's statistics, they would be equal.
    mean = "stem_bn.running_mean"
    assert not torch.equal(results[0][2][mean], results[2][2][mean])


def unsynchronized_buffers():
    model = DistributedDataParallel(SmallNet(), find_unused_parameters=True)
    model.broadcast_buffers = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dyrep = DyRep(model, optimizer)
    train(model, optimizer, batches(1))
    dyrep.adjust(batches(1))
    again = dyrep.rewrap(model)
    overridden = dyrep.rewrap(again, find_unused_parameters=False)
    return again.broadcast_buffers, again.find_unused_parameters, overridden.find_unused_parameters


def test_the_wrappers_settings_are_kept(ranks):
    assert ranks.values(unsynchronized_buffers) == [(False, True, False)] * 2
