import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from spatialgrad.models import create_model
from spatialgrad.reparam import (
    ACB,
    DBB,
    BranchedConv2d,
    Branches,
    RepVGG,
    UnsupportedLayerError,
    merge,
    named_blocks,
    reparameterize_,
)
from support.reparam import BLOCKS, SmallNet, batches, disturb_statistics_, evaluate, randomize_, relative, train


def everything(name, module):
    return True


def assert_keeps_function(model, x, config, tolerance=1e-5, **settings):
    """Convert a model; neither the conversion nor the merge changes its output. Returns it."""
    expected = evaluate(model, x)
    reparameterize_(model, config, **settings)
    assert relative(expected, evaluate(model, x)) < tolerance
    assert relative(expected, evaluate(merge(model), x)) < tolerance
    return model


@pytest.mark.parametrize("method", BLOCKS)
@pytest.mark.parametrize("with_data", [False, True])
def test_a_trained_model_keeps_its_function(method, with_data, device, data, x):
    model = randomize_(SmallNet().to(device))
    assert_keeps_function(model, x, BLOCKS[method], data=data if with_data else None)
    assert len(list(named_blocks(model))) == 3


@pytest.mark.parametrize("method", ["dbb", "qarepvgg"])
def test_with_data_also_the_function_in_training_mode_stays_close(method, device):
    model = SmallNet().to(device)
    data = batches(8, size=16, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        train(model, optimizer, data)
    x = torch.cat([x for x, _ in data])
    expected = copy.deepcopy(model).train()(x)
    reparameterize_(model, BLOCKS[method], data=data, batches=8)
    assert relative(expected, model.train()(x)) < 0.1


def test_an_untrained_model_starts_as_its_paper_says():
    model = SmallNet()
    before = copy.deepcopy(model.state_dict())
    reparameterize_(model, DBB())
    for _, block in named_blocks(model):
        for _, branch in block.named_branches():
            assert (branch.bn.weight == 1).all()
            assert (branch.bn.bias == 0).all()
    torch.testing.assert_close(model.res.branches["kxk"].conv.weight, before["res.weight"])
    torch.testing.assert_close(model.res.branches["1x1_kxk"].pointwise.weight[..., 0, 0], torch.eye(8))


def test_preserve_can_be_chosen(x, device):
    assert_keeps_function(SmallNet().to(device), x, DBB(), preserve=True)
    model = randomize_(SmallNet().to(device))
    expected = evaluate(model, x)
    reparameterize_(model, DBB(), preserve=False)
    assert relative(expected, evaluate(model, x)) > 1e-2


def test_the_batch_norm_moves_into_the_block():
    model = SmallNet()
    bn = model.stem_bn
    reparameterize_(model, ACB())
    assert type(model.stem_bn) is nn.Identity
    assert model.stem.branches["kxk"].bn is bn


def test_zero_initialized_batch_norms_keep_their_function(x, device):
    """Residual blocks often start with a zero weight, by which nothing can be divided."""
    model = randomize_(SmallNet().to(device))
    nn.init.zeros_(model.res_bn.weight)
    assert_keeps_function(model, x, DBB())
    assert model.res.branches["kxk"].conv.weight.abs().max() < 100


def test_models_without_batch_norm_keep_their_function_in_both_modes(x, device):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten()).to(device)
    expected = model(x)
    assert_keeps_function(model, x, DBB(), data=x)
    assert relative(expected, model.train()(x)) < 0.1


LARGE = DBB(branches=("kxk", "1xk", "kx1", "1x1"))


@pytest.mark.parametrize(
    ("config", "choice", "expected"),
    [
        (DBB(), {}, ["2"]),
        (RepVGG(), {}, ["2"]),
        (ACB(), {}, ["0", "2"]),
        (DBB(), {"include": lambda name, conv: conv.kernel_size[0] > 1}, ["0", "2"]),
        (ACB(), {"exclude": lambda name, conv: name == "0"}, ["2"]),
        (LARGE, {"include": lambda name, conv: name == "0"}, ["0"]),
    ],
)
def test_kernel_sizes_by_default_and_by_choice(config, choice, expected):
    model = nn.Sequential(nn.Conv2d(3, 4, 7), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1))
    assert [name for name, _ in named_blocks(reparameterize_(model, config, **choice))] == expected


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        (("kxk", "3x3"), r"Unknown branches \['3x3'\]"),
        (("kxk", "1x1", "1x1"), "Duplicate"),
        (("1x1",), "needs the branch 'kxk'"),
        (("kxk",), "at least one other"),
    ],
)
def test_wrong_branches_are_refused(branches, message):
    with pytest.raises(ValueError, match=message):
        DBB(branches=branches)


class Special(nn.Conv2d):
    pass


class Unused(SmallNet):
    def __init__(self):
        super().__init__()
        self.unused = nn.Conv2d(3, 3, 3)


def hooked():
    model = nn.Sequential(nn.Conv2d(2, 2, 3))
    model[0].register_forward_hook(lambda module, args, output: output)
    return model


def tied():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    model[1].weight = model[0].weight
    return model


def single(kernel):
    """The BatchNorm before it shows whether an error leaves a part of the model converted."""
    return nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, kernel))


@pytest.mark.parametrize(
    ("model", "config", "include", "message"),
    [
        (single((1, 7)), ACB(), everything, r"ACB cannot give '2' the branch '1xk'.*1×7 kernel has no smaller row or"),
        (single(1), RepVGG(), everything, r"RepVGG cannot give '2' the branch '1x1'.*1×1 kernel contains no smaller"),
        (single(1), DBB(), everything, r"DBB cannot give '2' the branch '1x1'"),
        (single((5, 1)), DBB(branches=("kxk", "1xk")), everything, r"DBB cannot give '2' the branch '1xk'"),
        (nn.Sequential(nn.Linear(2, 2)), DBB(), None, "found no convolution"),
        (reparameterize_(SmallNet(), DBB()), ACB(), None, "found no convolution"),
        (nn.Sequential(Special(2, 2, 3)), DBB(), None, "found no convolution"),
        (nn.Conv2d(2, 2, 3), DBB(), None, "itself is a convolution"),
        (nn.Sequential(Special(2, 2, 3)), DBB(), everything, "is a Special"),
        (nn.Sequential(parametrizations.weight_norm(nn.Conv2d(2, 2, 3))), DBB(), everything, "is a ParametrizedConv2d"),
        (hooked(), DBB(), everything, "'0' has hooks"),
        (tied(), DBB(), everything, "'0' shares its parameters"),
        (Unused(), DBB(), everything, "does not call 'unused'"),
        (nn.DataParallel(SmallNet()), DBB(), None, "before wrapping it in DataParallel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_replaced_is_named_and_nothing_changes(model, config, include, message):
    before = repr(model)
    with pytest.raises(UnsupportedLayerError if include else ValueError, match=message):
        reparameterize_(model, config, include=include)
    assert repr(model) == before


def test_convolutions_that_are_never_called_are_left():
    assert type(reparameterize_(Unused(), DBB()).unused) is nn.Conv2d


@pytest.mark.parametrize("method", ["dbb", "qarepvgg"])
def test_data_that_fails_leaves_the_model_unchanged(method, x, device):
    model = randomize_(SmallNet().to(device))
    before, expected = repr(model), evaluate(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no batch"):
        reparameterize_(model, BLOCKS[method], optimizer=optimizer, data=[])
    assert repr(model) == before
    assert torch.equal(evaluate(model, x), expected)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


class Shifting(ACB):
    """A method of somebody's own with a mistake."""

    def build(self, conv, bn, layer=""):
        block = super().build(conv, bn, layer)
        block.bias = nn.Parameter(torch.ones_like(bn.bias))
        return block


def test_a_block_that_computes_something_else_is_refused_and_the_model_unchanged(x, device):
    model = randomize_(SmallNet().to(device))
    nn.init.zeros_(model.res_bn.weight)
    before, expected = repr(model), evaluate(model, x)
    with pytest.raises(RuntimeError, match="ACB in place of 'stem' changed the output by"):
        reparameterize_(model, Shifting())
    assert repr(model) == before
    assert torch.equal(evaluate(model, x), expected)


class Shared(nn.Module):
    """One convolution and its BatchNorm in two places, called three times."""

    def __init__(self):
        super().__init__()
        conv, bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.first = nn.Sequential(conv, bn)
        self.second = nn.ModuleDict({"conv": conv, "bn": bn})

    def forward(self, x):
        x = self.first(self.first(x))
        return self.second["bn"](self.second["conv"](x))


def test_shared_modules_stay_shared(x, device):
    model = randomize_(Shared().to(device))
    with torch.no_grad():
        model.first[0].weight.mul_(0.2)
    assert_keeps_function(model, x, DBB(), tolerance=1e-4)
    assert isinstance(model.first[0], BranchedConv2d)
    for network in (model, merge(model)):
        assert network.first[0] is network.second["conv"]


class Dynamic(SmallNet):
    def forward(self, x):
        return super().forward(x) if x.sum() < 1e9 else x


def test_untraceable_models_need_example_inputs(x, device):
    with pytest.raises(UnsupportedLayerError, match="example_inputs="):
        reparameterize_(Dynamic(), DBB())
    model = assert_keeps_function(randomize_(Dynamic().to(device)), x, DBB(), example_inputs=x)
    assert type(model.stem_bn) is nn.Identity


def test_modes_dtypes_and_settings_carry_over(device):
    model = SmallNet().to(device, torch.float64).eval()
    model.res_bn.eps, model.res_bn.momentum = 1e-3, 0.3
    reparameterize_(model, DBB())
    assert not any(module.training for module in model.modules())
    assert {(parameter.dtype, parameter.device.type) for parameter in model.parameters()} == {
        (torch.float64, device.type)
    }
    for module in model.res.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.eps, module.momentum) == (1e-3, 0.3)


def test_synchronized_batch_norms_stay_so(x, device):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(SmallNet().to(device))
    assert_keeps_function(model, x, DBB(), preserve=True)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 3 * 6
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)


def test_compiled_models_are_converted_inside():
    model = SmallNet()
    compiled = torch.compile(model, backend="eager")
    assert reparameterize_(compiled, DBB()) is compiled
    assert isinstance(model.stem, BranchedConv2d)


@pytest.mark.parametrize("method", BLOCKS)
def test_another_default_device_makes_no_difference(method, data, x, device):
    """The meta device stands for any other: whatever is created there by mistake cannot be computed with."""
    model = randomize_(SmallNet().to(device))
    expected = evaluate(model, x)
    with torch.device("meta"):
        reparameterize_(model, BLOCKS[method], data=data)
        merged = merge(model)
        Branches(masks=[[[1, 1], [1, 1]]])
    assert relative(expected, evaluate(merged, x)) < 1e-5


# One of each kind: further depths are made of the same blocks.
KINDS = ["mobilenetv2", "preactresnet18", "resnet18", "resnet50", "seresnet18", "shufflenet", "vgg11", "xception"]


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "dbb") for name in KINDS), ("resnet18", "acb"), ("vgg11", "repvgg"), ("resnet18", "qarepvgg")],
)
def test_the_networks_of_the_paper(name, method, device):
    model = disturb_statistics_(create_model(name, num_classes=10, width=0.125).to(device))
    assert_keeps_function(model, torch.randn(2, 3, 32, 32, device=device), BLOCKS[method], tolerance=1e-4)
