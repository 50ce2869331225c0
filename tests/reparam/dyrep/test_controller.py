import copy
import dataclasses
import io
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spatialgrad.models import create_model
from spatialgrad.reparam import Adjustment, DyRep, DyRepConfig, count, merge_with_report
from spatialgrad.reparam.dyrep.growth import grown_blocks
from support.reparam import SmallNet, batches, evaluate, relative, train


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


@pytest.fixture
def images(data):
    return torch.cat([x for x, _ in data])


@pytest.fixture
def small(device):
    """Build a small network, its optimizer and its controller."""

    def build(config=None, **choice):
        model = SmallNet().to(device)
        optimizer = sgd(model)
        return model, optimizer, DyRep(model, optimizer, config or DyRepConfig(interval=1), **choice)

    return build


SCORES = {
    "synflow": lambda gradient, weight: (gradient * weight).sum(),
    "snip": lambda gradient, weight: (gradient * weight).abs().sum(),
    "gradient-norm": lambda gradient, weight: gradient.norm(),
}


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_means_over_the_steps(score, small, data):
    model, optimizer, dyrep = small(DyRepConfig(score=score))
    expected = 0.0
    for x, y in data[:2]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        expected += SCORES[score](model.res.weight.grad, model.res.weight).item() / 2
        optimizer.step()
    assert set(dyrep.scores) == {"stem", "down", "res"}
    assert dyrep.scores["res"] == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_the_highest_score_grows(small, data):
    model, optimizer, dyrep = small()
    train(model, optimizer, data)
    scores = dyrep.scores
    adjustment = dyrep.adjust(data)
    assert adjustment.grown == max(scores, key=scores.get)
    assert adjustment.scores == scores
    assert adjustment.changed
    assert adjustment.cut == {}
    assert list(grown_blocks(model)) == [adjustment.grown]
    assert not Adjustment(grown=None, cut={}, scores={}).changed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_do_not_grow(value, small, data, images):
    for broken in (["stem"], ["down"], ["res"], ["stem", "down", "res"]):
        model, optimizer, dyrep = small()
        train(model, optimizer, data[:1])
        for name in broken:
            model.get_submodule(name).weight.grad.fill_(value)
        dyrep.record()
        before, finite = evaluate(model, images), {n: s for n, s in dyrep.scores.items() if n not in broken}
        assert all(not -1e30 < dyrep.scores[name] < 1e30 for name in broken)
        adjustment = dyrep.adjust(data)
        assert adjustment.grown == max(finite, key=finite.get, default=None)
        assert adjustment.changed == bool(finite)
        assert finite or torch.equal(evaluate(model, images), before)


def test_every_growth_has_random_weights_of_its_own(images, device):
    convolutions = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), convolutions[0], nn.BatchNorm2d(4), convolutions[1], nn.BatchNorm2d(4))
    model.to(device)
    dyrep = DyRep(model, sgd(model), DyRepConfig(interval=1, max_depth=1))
    grown = []
    for _ in range(2):
        for conv in convolutions:
            conv.weight.grad = torch.ones_like(conv.weight)
        dyrep.record()
        grown.append(dyrep.adjust(images).grown)
    assert sorted(grown) == ["1", "3"]
    first, second = (model.get_submodule(name).branches["1x1"].conv.weight for name in grown)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_scores_of_steps_with_a_closure(small, data):
    model, optimizer, dyrep = small()
    x, y = data[0]

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    by_position = dyrep.scores
    assert by_position["res"] != 0
    optimizer.step(closure=closure)
    assert dyrep.scores != by_position


def test_adjusting_without_a_step_is_an_error(small, data):
    model, optimizer, dyrep = small()
    with pytest.raises(RuntimeError, match="No score was recorded"):
        dyrep.adjust(data)
    train(model, optimizer, data[:1])
    dyrep.adjust(data)
    with pytest.raises(RuntimeError, match="No score was recorded"):
        dyrep.adjust(data)
    dyrep.detach()
    train(model, optimizer, data[:1])
    assert dyrep.scores == {}


def test_schedule(small):
    _, _, dyrep = small(DyRepConfig())
    assert [epoch for epoch in range(600) if dyrep.due(epoch)] == list(range(15, 501, 15))
    _, _, dyrep = small(DyRepConfig(interval=5, until=10))
    assert [epoch for epoch in range(30) if dyrep.due(epoch)] == [5, 10]  # up to and including the last
    _, _, dyrep = small(DyRepConfig(interval=5, until=None))
    assert dyrep.due(10_000)
    assert not dyrep.due(0)


def test_models_that_cannot_grow_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 3, 1))
    with pytest.raises(ValueError, match="no convolution that can grow"):
        DyRep(model, sgd(model))
    model = SmallNet()
    with pytest.raises(ValueError, match="no convolution that can grow"):
        DyRep(model, torch.optim.SGD(model.head.parameters(), lr=0.1))


def test_selection(small, data):
    model, optimizer, dyrep = small(
        include=lambda name, module: name in ("down", "res"), exclude=lambda name, m: name == "res"
    )
    train(model, optimizer, data[:2])
    assert set(dyrep.scores) == {"down"}
    dyrep.adjust(data)
    train(model, optimizer, data[:2])
    assert set(dyrep.scores) == {"down.branches.kxk.conv", "down.branches.1x1_kxk.conv"}


def test_compiled_models_are_looked_through(data, images, device):
    model = SmallNet().to(device)
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="eager")
    dyrep = DyRep(compiled, optimizer)
    train(compiled, optimizer, data[:2])
    expected = evaluate(model, images)
    dyrep.adjust(data)
    assert relative(expected, evaluate(compiled, images)) < 1e-4
    train(compiled, optimizer, data[:2])
    assert all("." in name or name in ("stem", "down", "res") for name in dyrep.scores)
    assert any("branches" in name for name in dyrep.scores)


def test_the_optimizer_follows(small, data):
    model, optimizer, dyrep = small()
    train(model, optimizer, data)
    state = {p: optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()}
    dyrep.adjust(data)
    for parameter, momentum in state.items():
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], momentum)
    held = [id(p) for p in optimizer.param_groups[0]["params"]]
    assert held == [id(p) for p in model.parameters()]
    train(model, optimizer, data)

    # Let every other branch fall behind, so that the next adjustment cuts them.
    (name,) = grown_blocks(model)
    block = model.get_submodule(name)
    with torch.no_grad():
        for number, (_, branch) in enumerate(block.named_branches()):
            branch.bn.weight.fill_(1.0 if number < 2 else 1e-3)
    gone = [p for branch, module in block.named_branches() if branch not in ("kxk", "1x1") for p in module.parameters()]
    train(model, optimizer, data[:1])
    adjustment = dyrep.adjust(data)
    assert "1xk" in adjustment.cut[name]
    assert all(p not in optimizer.state for p in gone)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    train(model, optimizer, data)


def test_new_vectors_join_the_group_without_decay(data, device):
    model = SmallNet().to(device)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD([{"params": matrices, "weight_decay": 1e-2}, {"params": vectors}], lr=0.05)
    dyrep = DyRep(model, optimizer)
    for _ in range(3):
        train(model, optimizer, data)
        dyrep.adjust(data)
    assert all(p.ndim > 1 for p in optimizer.param_groups[0]["params"])
    assert all(p.ndim == 1 for p in optimizer.param_groups[1]["params"])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def tiny_vgg(device):
    torch.manual_seed(0)
    model = create_model("vgg11", num_classes=5, width=0.03125, dropout=0.0).to(device)
    return model, sgd(model)


def test_twenty_adjustments_with_training_between_them(device):
    """Eval-mode outputs survive every growth and every cut; the result merges into the plain network."""
    model, optimizer = tiny_vgg(device)
    data = batches(2, size=8, side=16, device=device)
    x = torch.cat([x for x, _ in data])
    # A large rate spreads the branch weights, so that there is something to cut.
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    plain, kinds = count(model, (3, 16, 16)), [type(module) for module in model.modules()]
    dyrep = DyRep(model, optimizer, DyRepConfig(interval=1))
    adjustments = []
    for _ in range(20):
        train(model, optimizer, data)
        expected = evaluate(model, x)
        adjustments.append(dyrep.adjust(data))
        assert relative(expected, evaluate(model, x)) < 1e-4, adjustments[-1]
    assert all(adjustment.grown for adjustment in adjustments)
    assert any(adjustment.cut for adjustment in adjustments)
    assert any("branches" in adjustment.grown for adjustment in adjustments)
    assert count(model, (3, 16, 16)).macs > 1.5 * plain.macs
    merged, report = merge_with_report(model, example_inputs=x)
    assert report.model.relative < 1e-4
    assert count(merged, (3, 16, 16)).macs == plain.macs
    assert [type(module) for module in merged.modules()] == kinds
    assert re.match(r"DyRep\(8 convolutions, \d+ blocks after 20 adjustments, interval=1", repr(dyrep))


@pytest.mark.bits
def test_resuming_in_the_middle_gives_the_same_network_and_weights(small, device):
    data = batches(3, size=4, side=32, device=device)

    def run(model, optimizer, dyrep, epochs):
        cuts = 0
        for epoch in epochs:
            if dyrep.due(epoch):
                cuts += len(dyrep.adjust(data).cut)
            train(model, optimizer, data[:2] if epoch % 2 else data)
        return cuts

    config = DyRepConfig(interval=2, spread=1e-4)  # a small spread, so that branches are cut early
    model, optimizer = tiny_vgg(device)
    dyrep = DyRep(model, optimizer, config)
    assert run(model, optimizer, dyrep, range(9)) > 0
    file = io.BytesIO()  # in the middle of an interval, with scores on record
    torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "d": dyrep.state_dict()}, file)
    assert run(model, optimizer, dyrep, range(9, 15)) > 0

    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    resumed, resumed_optimizer = tiny_vgg(device)
    resumed_dyrep = DyRep(resumed, resumed_optimizer, config)
    resumed_dyrep.load_state_dict(checkpoint["d"])
    resumed.load_state_dict(checkpoint["m"])
    resumed_optimizer.load_state_dict(checkpoint["o"])
    assert resumed_dyrep.state_dict() == checkpoint["d"]
    run(resumed, resumed_optimizer, resumed_dyrep, range(9, 15))

    assert dyrep.num_adjustments == 7
    assert repr(resumed) == repr(model)
    assert resumed_dyrep.state_dict() == dyrep.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_wrong_states_are_refused(small, data):
    model, optimizer, dyrep = small()
    train(model, optimizer, data[:1])
    with pytest.raises(ValueError, match="Not a state_dict of DyRep: it contains a"):
        dyrep.load_state_dict({"a": 1})
    state = copy.deepcopy(dyrep.state_dict())
    state["structure"]["elsewhere"] = {"bias": False}
    with pytest.raises(ValueError, match="another network or selection: elsewhere differ"):
        dyrep.load_state_dict(state)
    dyrep.adjust(data)
    with pytest.raises(ValueError, match="already has grown blocks"):
        dyrep.load_state_dict(dyrep.state_dict())
    with pytest.raises(ValueError, match="already has grown blocks"):
        DyRep(model, optimizer)


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval": 0}, "interval must be at least 1 epoch, not 0"),
        ({"until": -1}, "until must be at least 0, or None for no limit, not -1"),
        ({"max_depth": 0}, "max_depth must be at least 1, not 0"),
        ({"score": "magic"}, "unknown score 'magic'; choose from synflow, snip, gradient-norm"),
        ({"spread": -1.0}, "spread must be at least 0, not -1.0"),
        ({"threshold": float("nan")}, "threshold must be at least 0, not nan"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DyRepConfig(**wrong)


def test_a_group_of_a_larger_config_can_extend_it():
    @dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
    class Group(DyRepConfig):
        batches: int = 20

    assert Group(interval=5).batches == 20
    with pytest.raises(ValueError, match="interval"):
        Group(interval=0)
