"""Every way to train that plain PyTorch offers: multipliers do what a hand-written step does."""

import copy
import math

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


@pytest.mark.parametrize("power", POWERS)
def test_a_plain_loop(power):
    model, mine, twin, other = multiplied(power)
    unscaled = copy.deepcopy(twin)
    train_(model, mine, batches())
    train_by_hand_(twin, other, batches(), power)
    assert close_weights(model, twin)
    optimizer, settings = OPTIMIZERS[power]
    train_(unscaled, optimizer(unscaled.parameters(), **settings), batches())
    assert not close_weights(model, unscaled)


@pytest.mark.parametrize("power", POWERS)
def test_gradient_accumulation(power):
    model, mine, twin, other = multiplied(power)
    for step in range(3):
        for optimizer in (mine, other):
            optimizer.zero_grad()
        for micro in range(4):
            for net in (model, twin):
                (loss_of(net, images(seed=10 * step + micro)) / 4).backward()
        mine.step()
        multiplied_step_by_hand_(twin, other, power)
    assert close_weights(model, twin)


@pytest.mark.parametrize("power", POWERS)
def test_step_with_a_closure(power):
    model, mine, twin, other = multiplied(power)
    for batch in batches():

        def closure(batch=batch):
            mine.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        mine.step(closure)
    train_by_hand_(twin, other, batches(), power)
    assert close_weights(model, twin)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clipping", [False, True])
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


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_channels_last(power, when):
    model = ScaledNet()
    if when == "before":
        model = model.to(memory_format=torch.channels_last)
    model, mine, twin, other = multiplied(power, model)
    model, twin = (net.to(memory_format=torch.channels_last) for net in (model, twin))
    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches()]
    train_(model, mine, data)
    train_by_hand_(twin, other, data, power)
    assert close_weights(model, twin)


@pytest.mark.parametrize(
    ("power", "what", "backend"),
    [
        *((power, what, "aot_eager") for power in POWERS for what in ("model", "step")),
        pytest.param(1, "step", *INDUCTOR.values, marks=INDUCTOR.marks),
    ],
)
def test_compiled(power, what, backend):
    torch.compiler.reset()
    model, mine, twin, other = multiplied(power)
    net = torch.compile(model, backend=backend) if what == "model" else model
    step = torch.compile(mine.step, backend=backend) if what == "step" else mine.step
    for batch in batches():
        mine.zero_grad()
        loss_of(net, batch).backward()
        step()
    train_by_hand_(twin, other, batches(), power)
    assert close_weights(model, twin)


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
