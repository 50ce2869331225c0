"""Every way to train that plain PyTorch offers: multipliers do what a hand-written step does."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from spatialgrad.reparam import RepOptScaling
from support.common import BFLOAT16_ALIKE, batches, close_weights, images, loss_of, same_weights, train_
from support.compiling import INDUCTOR
from support.repopt import OPTIMIZERS, ScaledNet, multiplied, multiplied_step_by_hand_, multipliers_by_hand, some_scales

POWERS = list(OPTIMIZERS)


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


def compiled_model_(model, optimizer, backend="aot_eager"):
    train_(torch.compile(model, backend=backend), optimizer, batches())


def compiled_step_(model, optimizer, backend="aot_eager"):
    step = torch.compile(optimizer.step, backend=backend)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        step()


def channels_last_(model, optimizer):
    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches()]
    train_(model.to(memory_format=torch.channels_last), optimizer, data)


WAYS = {
    "a plain loop": lambda model, optimizer: train_(model, optimizer, batches()),
    "accumulation": accumulated_,
    "closures": with_closures_,
    "compiled model": compiled_model_,
    "compiled step": compiled_step_,
    "channels last": channels_last_,
}


@pytest.mark.parametrize(
    ("way", "power", "run"),
    [
        *((way, power, run) for way, run in WAYS.items() for power in POWERS),
        pytest.param("inductor", 1, partial(compiled_step_, backend="inductor"), marks=INDUCTOR.marks),
    ],
)
def test_ways_to_train(way, power, run):
    torch.compiler.reset()
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


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("fused", "clipping"), [(False, True), (True, False), (True, True)])
def test_grad_scaler_with_a_skipped_step(power, fused, clipping):
    model, mine, twin, other = multiplied(power, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, batch in enumerate(batches(5)):
        broken = step == 2
        mine.zero_grad()
        scaler.scale(loss_of(model, batch) * (math.inf if broken else 1.0)).backward()
        if clipping:
            scaler.unscale_(mine)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        before = copy.deepcopy(model)
        scaler.step(mine)
        scaler.update()
        if broken:
            assert same_weights(model, before)
            assert scaler.get_scale() == 512.0
            continue
        other.zero_grad()
        loss_of(twin, batch).backward()
        if clipping:
            nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        multiplied_step_by_hand_(twin, other, power)
    assert close_weights(model, twin)


@pytest.mark.parametrize("power", POWERS)
def test_bfloat16_autocast(power):
    model, mine, twin, other = multiplied(power)
    for x, y in batches():
        for net, optimizer in ((model, mine), (twin, other)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits = net(x)
                assert logits.dtype == torch.bfloat16
                loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
        mine.step()
        multiplied_step_by_hand_(twin, other, power)
    assert close_weights(model, twin, BFLOAT16_ALIKE)


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

    def split(net):
        late = [*net.odd.parameters(), *net.narrow.parameters(), *net.head.parameters()]
        return [torch.optim.SGD([*net.first.parameters(), *net.same.parameters()], lr=0.1), torch.optim.SGD(late, 0.1)]

    mine, other = split(model), torch.optim.SGD(twin.parameters(), lr=0.1)
    RepOptScaling(model, mine, some_scales())
    for batch in batches():
        model.zero_grad()
        loss_of(model, batch).backward()
        for optimizer in mine:
            optimizer.step()
    train_by_hand_(twin, other, batches(), 2)
    assert close_weights(model, twin)


@pytest.mark.bits
@pytest.mark.parametrize("power", POWERS)
def test_a_resumed_training_is_bit_exact(power):
    whole, optimizer, _, _ = multiplied(power)
    first, first_optimizer, _, _ = multiplied(power, copy.deepcopy(whole))
    train_(whole, optimizer, batches(4))
    train_(first, first_optimizer, batches(2))
    resumed, resumed_optimizer, _, _ = multiplied(power)
    resumed.load_state_dict(first.state_dict())
    resumed_optimizer.load_state_dict(first_optimizer.state_dict())
    train_(resumed, resumed_optimizer, batches(4)[2:])
    assert same_weights(resumed, whole)
