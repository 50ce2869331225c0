"""Replacing parts of a network while an optimizer trains it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spatialgrad.reparam import ACB, DBB, Branches, reparameterize_
from spatialgrad.reparam.surgery import growable, hand_over_, sort_parameters_
from support.reparam import SmallNet, batches, train


def grouped(model):
    """The usual recipe: no weight decay for vectors, another rate for the stem."""
    stem = [p for n, p in model.named_parameters() if n.startswith("stem.")]
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and not n.startswith("stem.")]
    vectors = [p for n, p in model.named_parameters() if p.ndim == 1 and not n.startswith("stem.")]
    groups = [{"params": matrices, "weight_decay": 1e-2}, {"params": vectors}, {"params": stem, "lr": 0.001}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def group_of(optimizer, parameter):
    (index,) = [i for i, group in enumerate(optimizer.param_groups) if any(p is parameter for p in group["params"])]
    return index


def test_new_parameters_join_the_groups_of_their_layer():
    model = SmallNet()
    optimizer = grouped(model)
    reparameterize_(model, DBB(), optimizer=optimizer)
    everything = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())
    for name, parameter in model.named_parameters():
        expected = 1 if parameter.ndim == 1 else 2 if name.startswith("stem.") else 0
        assert group_of(optimizer, parameter) == expected, name


@pytest.mark.parametrize("method", [ACB(), Branches(masks=[torch.ones(3, 3), torch.eye(3)])])
def test_survivors_keep_their_state_newcomers_train_and_others_leave(method):
    model = SmallNet()
    optimizer = grouped(model)
    train(model, optimizer, batches(2))
    old = {p: optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()}
    weight, bn = model.res.weight, model.res_bn
    reparameterize_(model, method, optimizer=optimizer)
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == set(model.parameters())
    assert set(optimizer.state) == held & set(old)
    assert all(torch.equal(optimizer.state[p]["momentum_buffer"], old[p]) for p in held & set(old))
    if method.takes_batch_norm:
        assert model.res.branches["kxk"].conv.weight is weight
        assert model.res.branches["kxk"].bn is bn
    else:
        assert weight not in held
    new = {p: p.detach().clone() for p in held - set(old)}
    train(model, optimizer, batches(2))
    assert new
    assert not any(torch.equal(p, value) for p, value in new.items())


def test_a_layer_of_another_optimizer_is_refused_before_anything_changes():
    model = SmallNet()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"does not train 'stem', 'down', 'res'"):
        reparameterize_(model, DBB(), optimizer=optimizer)
    assert type(model.stem) is nn.Conv2d
    assert type(model.stem_bn) is nn.BatchNorm2d


def test_frozen_layers_get_frozen_branches_outside_the_optimizer():
    model = SmallNet()
    model.stem.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    reparameterize_(model, DBB(), optimizer=optimizer)
    assert not any(p.requires_grad for n, p in model.named_parameters() if n.startswith("stem.branches.1x1"))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


def test_named_optimizers_get_the_new_names():
    model = SmallNet()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    reparameterize_(model, ACB(), optimizer=optimizer)
    (group,) = optimizer.param_groups
    names = dict(model.named_parameters())
    assert set(group["param_names"]) == set(names)
    assert all(names[name] is p for name, p in zip(group["param_names"], group["params"], strict=True))


def test_the_order_follows_from_the_structure():
    """So that an optimizer's checkpoint fits a network that was built anew."""
    first, second = SmallNet(), SmallNet()
    late = torch.optim.SGD(first.parameters(), lr=0.1)
    reparameterize_(first, DBB(), optimizer=late)
    reparameterize_(second, DBB())
    early = torch.optim.SGD(second.parameters(), lr=0.1)
    shapes = [[tuple(p.shape) for p in optimizer.param_groups[0]["params"]] for optimizer in (late, early)]
    assert shapes[0] == shapes[1]


def test_foreign_parameters_stay_at_the_end():
    model = nn.Linear(2, 2)
    foreign = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([foreign, model.bias, model.weight], lr=0.1)
    sort_parameters_(optimizer, model)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(model.weight), id(model.bias), id(foreign)]


def test_optimizers_that_can_grow():
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=1.0)
    assert growable(SimpleNamespace(optimizer=sgd)) is sgd
    with pytest.raises(TypeError, match="got str"):
        growable("sgd")
    with pytest.raises(ValueError, match="LBFGS"):
        growable(torch.optim.LBFGS([weight]))


def test_a_newcomer_without_kin_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ValueError, match="'weight' belongs with"):
        hand_over_(optimizer, model, before=[model.bias], siblings={model.weight: [model.bias]})
