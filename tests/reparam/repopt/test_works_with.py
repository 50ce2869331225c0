"""Ways to train, in one process and in two: multipliers do what a hand-written step does.

The hook is that of SpatialGradientScaling, whose own tests have more ways; here, every element has its own factor.
"""

import contextlib
import copy
import math
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spatialgrad.reparam import RepOptScaling
from support.common import STEPS_ALIKE, batches, close_weights, images, loss_of, same_matrices, same_weights, train_
from support.compiling import INDUCTOR
from support.repopt import OPTIMIZERS, ScaledNet, multiplied, multiplied_step_by_hand_, multipliers_by_hand, some_scales

every_power = pytest.mark.parametrize("power", OPTIMIZERS)


def train_by_hand_(model, optimizer, data, power):
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        multiplied_step_by_hand_(model, optimizer, power)


def accumulated_(model, optimizer):
    for x, y in batches():
        optimizer.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            (loss_of(model, (x[half], y[half])) / 2).backward()
        optimizer.step()


def with_closures_(model, optimizer):
    for batch in batches():

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


def compiled_step_(model, optimizer, backend="aot_eager"):
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend=backend)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        step()


def channels_last_(model, optimizer):
    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches()]
    train_(model.to(memory_format=torch.channels_last), optimizer, data)


def grad_scaler_(model, optimizer):
    """One more step is skipped, because its gradients are infinite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for batch, factor in zip([images(seed=9), *batches()], [math.inf, 1, 1, 1, 1], strict=True):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch) * factor).backward()
        scaler.step(optimizer)
        scaler.update()


WAYS = {
    "plain": lambda model, optimizer: train_(model, optimizer, batches()),
    "accumulation": accumulated_,
    "closures": with_closures_,
    "compiled step": compiled_step_,
    "channels last": channels_last_,
    "grad scaler": grad_scaler_,
}


@pytest.mark.parametrize(
    ("way", "power", "run"),
    [
        *((way, power, run) for way, run in WAYS.items() for power in OPTIMIZERS),
        pytest.param("inductor", 1, partial(compiled_step_, backend="inductor"), marks=INDUCTOR.marks),
    ],
)
def test_ways_to_train(way, power, run):
    start = ScaledNet()
    if way == "channels last" and power == 2:  # before, or else after the multipliers were made
        start = start.to(memory_format=torch.channels_last)
    model, mine, twin, other = multiplied(power, start)
    unscaled = copy.deepcopy(twin)
    run(model, mine)
    train_by_hand_(twin, other, batches(), power)
    assert close_weights(model, twin)
    optimizer, settings = OPTIMIZERS[power]
    train_(unscaled, optimizer(unscaled.parameters(), **settings), batches())
    assert not close_weights(model, unscaled)


def test_bfloat16_weights_are_multiplied_by_what_is_not_rounded():
    model, mine, twin, other = multiplied(2, ScaledNet().bfloat16(), momentum=0.0, weight_decay=0.0)
    for net, optimizer in ((model, mine), (twin, other)):
        x, y = images()
        optimizer.zero_grad()
        loss_of(net, (x.bfloat16(), y)).backward()
    mine.step()
    for name, values in multipliers_by_hand(twin, 2).items():
        mine_gradient, gradient = (net.get_parameter(f"{name}.weight").grad for net in (model, twin))
        assert torch.equal(mine_gradient, (gradient.float() * values).bfloat16())


def test_each_of_several_optimizers_multiplies_its_own_layers():
    model = ScaledNet()
    twin = copy.deepcopy(model)
    late = [*model.odd.parameters(), *model.narrow.parameters(), *model.head.parameters()]
    early = [*model.first.parameters(), *model.same.parameters()]
    mine, other = [torch.optim.SGD(part, 0.1) for part in (early, late)], torch.optim.SGD(twin.parameters(), 0.1)
    RepOptScaling(model, mine, some_scales())
    for batch in batches():
        model.zero_grad()
        loss_of(model, batch).backward()
        for optimizer in mine:
            optimizer.step()
    train_by_hand_(twin, other, batches(), 2)
    assert close_weights(model, twin)

    mixed = [
        torch.optim.SGD([p for p in twin.parameters() if p is not twin.same.weight]),
        torch.optim.Adam([twin.same.weight]),
    ]
    with pytest.raises(ValueError, match="optimizers of one kind"):
        RepOptScaling(twin, mixed, some_scales())


@pytest.mark.bits
@every_power
@pytest.mark.parametrize("how", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))])
def test_a_copy_of_everything_is_multiplied_as_the_original(power, how):
    model = ScaledNet()
    optimizer, settings = OPTIMIZERS[power]
    mine = optimizer(model.parameters(), **settings)
    scaling = RepOptScaling(model, mine, some_scales())
    train_(model, mine, batches(2))
    copied, optimizer_copied, _ = how((model, mine, scaling))
    for net, stepped in ((model, mine), (copied, optimizer_copied)):
        train_(net, stepped, batches(4)[2:])
    assert same_weights(model, copied)


# Two processes

MICRO_BATCHES = 2  # per step of each process
needs_shards = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="this torch shards on GPUs only, as 2.6 does"
)


def build(power, how="plain"):
    torch.manual_seed(0)
    model = ScaledNet()
    if how == "ddp":
        model = DistributedDataParallel(model)
    if how == "fully_shard":
        for module in (model.first, model.same, model.odd, model):
            fully_shard(module)
    optimizer, settings = OPTIMIZERS[power]
    return model, optimizer(model.parameters(), **settings)


def weights_of(model):
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    return {name.removeprefix("module."): value.detach().clone() for name, value in whole.items()}


def train(how, power):
    """Steps with each process's own half of the data; the whole weights."""
    model, optimizer = build(power, how)
    scaling = RepOptScaling(model, optimizer, some_scales())
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            last = micro == MICRO_BATCHES - 1
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


@pytest.mark.xdist_group("ranks")
@pytest.mark.timeout(200)
@every_power
@pytest.mark.parametrize("how", ["ddp", pytest.param("fully_shard", marks=needs_shards)])
def test_training_is_that_of_one_process_with_all_data(ranks, how, power):
    first, second = ranks.values(train, how, power)
    assert same_matrices(first, second)

    model, optimizer = build(power)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            for rank in range(2):
                (loss_of(model, images(seed=100 * step + 10 * micro + rank)) / 2).backward()
        multiplied_step_by_hand_(model, optimizer, power)
    expected = weights_of(model)
    assert first.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, **STEPS_ALIKE, msg=name)
