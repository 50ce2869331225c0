"""Two real processes: multipliers reach whole and shared weights as they reach those of one process."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spatialgrad.reparam import RepOptScaling
from support.common import STEPS_ALIKE, images, loss_of, same_matrices
from support.repopt import OPTIMIZERS, ScaledNet, multiplied_step_by_hand_, some_scales

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.timeout(200)]

FULLY_SHARD = pytest.param(
    "fully_shard",
    marks=pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"), reason="this torch shards on GPUs only, as 2.6 does"
    ),
)
STEPS = 3


def build(power, how="plain"):
    torch.manual_seed(0)
    model = ScaledNet()
    if how == "ddp":
        model = DistributedDataParallel(model)
    if how == "fully_shard":
        for module in (model.first, model.same, model.odd):
            fully_shard(module)
        fully_shard(model)
    optimizer, settings = OPTIMIZERS[power]
    return model, optimizer(model.parameters(), **settings)


def weights_of(model):
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    return {name.removeprefix("module."): value.detach().clone() for name, value in whole.items()}


# What the processes run


def train(how, power, accumulate):
    """Steps with each process's own half of the data; the whole weights."""
    model, optimizer = build(power, how)
    scaling = RepOptScaling(model, optimizer, some_scales())
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulate):
            last = micro == accumulate - 1
            if how == "fully_shard":
                model.set_requires_gradient_sync(last)
            with model.no_sync() if how == "ddp" and not last else contextlib.nullcontext():
                loss_of(model, images(seed=100 * step + 10 * micro + dist.get_rank())).backward()
        if how == "fully_shard" and dist.get_rank() == 1:
            assert model.narrow.weight.to_local().numel() == 0
        optimizer.step()
    # What a checkpoint of any one process holds is enough for all of them.
    scaling.load_state_dict(copy.deepcopy(scaling.state_dict()))
    return weights_of(model)


# What must come of it


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("power", OPTIMIZERS)
@pytest.mark.parametrize("how", ["ddp", FULLY_SHARD])
def test_training_is_that_of_one_process_with_all_data(ranks, how, power, accumulate):
    first, second = ranks.values(train, how, power, accumulate)
    assert same_matrices(first, second)

    model, optimizer = build(power)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(accumulate):
            for rank in range(2):
                (loss_of(model, images(seed=100 * step + 10 * micro + rank)) / 2).backward()
        multiplied_step_by_hand_(model, optimizer, power)
    expected = weights_of(model)
    assert first.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, **STEPS_ALIKE, msg=name)
