import copy

import pytest
import torch
from torch import nn

from spatialgrad.reparam import DBB, merge, reparameterize_
from spatialgrad.reparam.dyrep.growth import (
    branch_weights,
    branches_to_cut,
    core,
    cut_,
    grow_,
    grown_blocks,
    growth_points,
    rebuild_,
    structure_of,
)
from support.reparam import SmallNet, evaluate, randomize_, relative, train


@pytest.fixture
def images(data):
    return torch.cat([x for x, _ in data])


def anything(name, module):
    return True


def trained(data, **settings):
    model = SmallNet(**settings).to(data[0][0].device)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data * 2)
    return model


def grown(data, *inner, **settings):
    """Return a trained network whose `res` has grown, and then the convolutions inside these branches of it."""
    model = trained(data, **settings)
    grow_(model, model.res, seed=0, data=data)
    for seed, name in enumerate(inner, start=1):
        grow_(model, model.res.branches[name].conv, seed=seed, data=data)
    return model


def all_but_kxk(block):
    return [name for name in block.branches if name != "kxk"]


def test_growing_keeps_the_function_in_both_modes(data, images):
    model = trained(data)
    expected, in_training = evaluate(model, images), copy.deepcopy(model).train()(images)
    weight, before = model.res.weight, model.res.weight.detach().clone()
    block = grow_(model, model.res, seed=0, data=data)
    assert model.res is block
    assert list(block.branches) == ["kxk", "1x1", "1xk", "kx1", "1x1_kxk", "1x1_avg", "identity"]
    assert core(block).weight is weight
    assert type(model.res_bn) is nn.BatchNorm2d
    assert relative(expected, evaluate(model, images)) < 1e-5
    # The full branch has given up what the new ones contribute.
    others = {name: branch for name, branch in block.named_branches() if name != "kxk"}
    contribution = sum(branch.fold().weight for branch in others.values())
    assert contribution.abs().max() > 1e-4
    torch.testing.assert_close(weight.double(), before.double() - contribution, atol=1e-5, rtol=0)
    assert all((branch.bn.weight == 0.01).all() for branch in others.values())
    assert relative(in_training, model.train()(images)) < 0.05
    for conv in (model.stem, model.down):  # of other shapes
        assert "identity" not in grow_(model, conv, seed=0, data=data).branches


def test_growth_nests_and_merges(data, images):
    model = trained(data, bias=True)
    expected = evaluate(model, images)
    grow_(model, model.res, seed=0, data=data)
    grow_(model, model.res.branches["1x1_kxk"].conv, seed=1, data=data)
    grow_(model, model.res.branches["kxk"].conv, seed=2, data=data)
    assert list(grown_blocks(model)) == ["res.branches.1x1_kxk.conv", "res.branches.kxk.conv", "res"]
    assert relative(expected, evaluate(model, images)) < 1e-4
    merged = merge(model)
    assert type(merged.res) is nn.Conv2d
    assert relative(expected, evaluate(merged, images)) < 1e-4
    assert set(growth_points(model, anything, max_depth=2)) == {"stem", "down"}
    deeper = growth_points(model, anything, max_depth=3)
    assert "res.branches.kxk.conv.branches.1x1_kxk.conv" in deeper


def test_points_of_growth():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, (1, 3)), nn.Conv2d(4, 4, 7), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    )
    model[4].weight = model[3].weight
    assert set(growth_points(model, anything, 2)) == {"2"}
    model[2].requires_grad_(False)
    assert growth_points(model, anything, 2) == {}
    assert set(growth_points(SmallNet(), lambda name, module: name != "stem", 2)) == {"down", "res"}
    assert growth_points(reparameterize_(SmallNet(), DBB()), anything, 2) == {}


def test_the_initial_weights_come_from_the_seed_alone(data):
    blocks = []
    for _ in range(2):
        torch.manual_seed(3)
        model = trained(data)
        torch.manual_seed(len(blocks))
        state = torch.get_rng_state()
        blocks.append(grow_(model, model.res, seed=5, data=data))
        assert torch.equal(torch.get_rng_state(), state)
    first, second = (block.state_dict() for block in blocks)
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_growing_seeds_no_other_device(monkeypatch, data):
    model, seeded = trained(data), []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.mps, "manual_seed", seeded.append)
    with torch.device("meta"):  # nor does a default device matter
        grow_(model, model.res, seed=0, data=data)
        assert branches_to_cut({"1x1": 0.01, "1xk": 0.2}, spread=0.02, threshold=0.1) == ["1x1"]
    assert seeded == []


def test_cutting_rules():
    rule = {"spread": 0.02, "threshold": 0.1}
    assert branches_to_cut({"1x1": 0.01, "1xk": 0.01, "kx1": 0.01}, **rule) == []
    assert branches_to_cut({"1x1": 0.01, "1xk": 0.02, "kx1": 0.2}, **rule) == ["1x1", "1xk"]
    assert branches_to_cut({"1x1": 0.15, "1xk": 0.3}, **rule) == []  # below the mean, but not below the threshold
    assert branches_to_cut({"1x1": 0.09, "1xk": 0.01}, **rule) == ["1xk"]  # below the threshold, but not the mean
    assert branches_to_cut({"1x1": 0.0}, **rule) == []
    assert branches_to_cut({}, **rule) == []


def test_branch_weights_are_relative_to_the_full_branch(data):
    block = grown(data).res
    with torch.no_grad():
        block.branches["kxk"].bn.weight.fill_(-2)
        block.branches["1x1"].bn.weight.copy_(torch.tensor([1.0, -1] * 4))
    weights = branch_weights(block)
    assert weights["1x1"] == pytest.approx(0.5)
    assert weights["1xk"] == pytest.approx(0.005)
    assert "kxk" not in weights


@pytest.mark.parametrize(
    ("inner", "names"),
    [
        ([], ["1x1"]),
        ([], ["1x1_kxk", "identity"]),
        ([], ["1x1", "1xk", "kx1", "1x1_avg"]),
        (["1x1_kxk"], ["1x1_kxk"]),  # a branch that has grown itself
    ],
)
def test_cutting_keeps_the_function(inner, names, data, images):
    model = randomize_(grown(data, *inner))
    expected = evaluate(model, images)
    cut_(model, model.res, names)
    assert set(names).isdisjoint(model.res.branches)
    assert relative(expected, evaluate(model, images)) < 1e-4


@pytest.mark.parametrize("bias", [False, True])
def test_a_block_with_nothing_left_becomes_a_convolution_again(bias, data, images):
    model = randomize_(grown(data, bias=bias))
    weight = core(model.res).weight
    expected = evaluate(model, images)
    cut_(model, model.res, all_but_kxk(model.res))
    assert type(model.res) is nn.Conv2d
    assert model.res.weight is weight
    assert model.res.bias is not None
    assert relative(expected, evaluate(model, images)) < 1e-4


def test_a_nested_block_outlives_the_one_around_it(data, images):
    model = randomize_(grown(data, "kxk"))
    inner, expected = model.res.branches["kxk"].conv, evaluate(model, images)
    cut_(model, model.res, all_but_kxk(model.res))
    assert model.res is inner
    assert relative(expected, evaluate(model, images)) < 1e-4


def test_structures_are_rebuilt(data, images):
    model = grown(data, "1x1_kxk")
    cut_(model, model.res, ["1xk", "kx1"])
    grow_(model, model.stem, seed=2, data=data)
    cut_(model, model.stem, all_but_kxk(model.stem))
    other = SmallNet().to(images.device)
    for name in ("stem", "down", "res"):
        rebuild_(other, name, structure_of(model.get_submodule(name)))
    other.load_state_dict(model.state_dict())
    assert list(dict(other.named_parameters())) == list(dict(model.named_parameters()))
    assert torch.equal(evaluate(other, images), evaluate(model, images))


def test_a_structure_of_another_network_is_refused():
    model = SmallNet()
    structure = {"branches": {"kxk": {"bias": False}, "identity": None}}
    with pytest.raises(ValueError, match="'stem' cannot have the branches kxk, identity: the state is of another"):
        rebuild_(model, "stem", structure)
    assert type(model.stem) is nn.Conv2d


def test_growth_that_fails_leaves_the_network_as_it_was(data, images):
    model = trained(data)
    expected, conv = evaluate(model, images), model.res
    with pytest.raises(ValueError, match="no batch"):
        grow_(model, conv, seed=0, data=[])
    assert model.res is conv
    assert torch.equal(expected, evaluate(model, images))
