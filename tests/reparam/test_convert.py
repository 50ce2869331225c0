import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from spatialgrad.models import create_model, list_models
from spatialgrad.reparam import (
    ACB,
    DBB,
    BranchedConv2d,
    Branches,
    QARepVGG,
    RepOpt,
    RepVGG,
    UnsupportedLayerError,
    merge,
    named_blocks,
    reparameterize_,
)
from support.reparam import SmallNet, batches, disturb_statistics_, evaluate, randomize_, relative, train

METHODS = {
    "acb": ACB(),
    "repvgg": RepVGG(),
    "qarepvgg": QARepVGG(),
    "dbb": DBB(),
    "branches": Branches(masks=[torch.ones(3, 3), torch.eye(3)]),
}
X = torch.randn(4, 3, 10, 10)


def everything(name, module):
    return True


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", [None, batches(3)], ids=["without-data", "with-data"])
def test_a_trained_model_keeps_its_function(method, data):
    model = randomize_(SmallNet())
    expected = evaluate(model, X)
    reparameterize_(model, METHODS[method], data=data)
    assert len(list(named_blocks(model))) == 3
    assert relative(expected, evaluate(model, X)) < 1e-5
    assert relative(expected, evaluate(merge(model), X)) < 1e-5


def test_with_data_also_the_function_in_training_mode_stays_close():
    model = SmallNet()
    data = batches(8, size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        train(model, optimizer, data)
    x = torch.cat([x for x, _ in data])
    expected = copy.deepcopy(model).train()(x)
    reparameterize_(model, DBB(), data=data, batches=8)
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
    pointwise = model.res.branches["1x1_kxk"].pointwise.weight[..., 0, 0]
    torch.testing.assert_close(pointwise, torch.eye(8))


def test_preserve_can_be_chosen():
    model = SmallNet()
    expected = evaluate(model, X)
    reparameterize_(model, DBB(), preserve=True)
    assert relative(expected, evaluate(model, X)) < 1e-5
    model = randomize_(SmallNet())
    expected = evaluate(model, X)
    reparameterize_(model, DBB(), preserve=False)
    assert relative(expected, evaluate(model, X)) > 1e-2


def test_the_batch_norm_moves_into_the_block():
    model = SmallNet()
    bn = model.stem_bn
    reparameterize_(model, ACB())
    assert type(model.stem_bn) is nn.Identity
    assert model.stem.branches["kxk"].bn is bn


def test_zero_initialized_batch_norms_keep_their_function():
    """Residual blocks often start with a zero weight, by which nothing can be divided."""
    model = randomize_(SmallNet())
    nn.init.zeros_(model.res_bn.weight)
    expected = evaluate(model, X)
    reparameterize_(model, DBB())
    assert relative(expected, evaluate(model, X)) < 1e-5
    assert model.res.branches["kxk"].conv.weight.abs().max() < 100


def test_models_without_batch_norm_keep_their_function_in_both_modes():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    expected = model(X)
    reparameterize_(model, DBB(), data=X)
    assert relative(expected, evaluate(model, X)) < 1e-5
    assert relative(expected, model.train()(X)) < 0.1


def test_kernel_sizes_by_default_and_by_choice():
    def build():
        return nn.Sequential(nn.Conv2d(3, 4, 7), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1))

    def converted(config, **choice):
        return [name for name, _ in named_blocks(reparameterize_(build(), config, **choice))]

    assert converted(DBB()) == ["2"]
    assert converted(RepVGG()) == ["2"]
    assert converted(ACB()) == ["0", "2"]
    assert converted(DBB(), include=lambda name, conv: conv.kernel_size[0] > 1) == ["0", "2"]
    assert converted(ACB(), exclude=lambda name, conv: name == "0") == ["2"]
    large = DBB(branches=("kxk", "1xk", "kx1", "1x1"))
    assert converted(large, include=lambda name, conv: name == "0") == ["0"]


@pytest.mark.parametrize(
    ("config", "kernel", "message"),
    [
        (ACB(), (1, 7), r"ACB cannot give '0' the branch '1xk'.*1×7 kernel has no smaller row or column"),
        (RepVGG(), 1, r"RepVGG cannot give '0' the branch '1x1'.*1×1 kernel contains no smaller one"),
        (DBB(), 1, r"DBB cannot give '0' the branch '1x1'"),
        (DBB(branches=("kxk", "1xk")), (5, 1), r"DBB cannot give '0' the branch '1xk'"),
    ],
)
def test_what_the_algebra_does_not_allow_is_an_error_that_names_the_layer(config, kernel, message):
    with pytest.raises(UnsupportedLayerError, match=message):
        reparameterize_(nn.Sequential(nn.Conv2d(2, 2, kernel)), config, include=everything)


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


def test_nothing_to_replace_is_an_error():
    with pytest.raises(ValueError, match="found no convolution"):
        reparameterize_(nn.Sequential(nn.Linear(2, 2)), DBB())
    model = reparameterize_(SmallNet(), DBB())
    with pytest.raises(ValueError, match="found no convolution"):
        reparameterize_(model, ACB())


def test_a_lone_convolution_cannot_be_replaced_in_place():
    with pytest.raises(ValueError, match="itself is a convolution"):
        reparameterize_(nn.Conv2d(2, 2, 3), DBB())


def test_what_only_looks_like_a_convolution_is_refused_by_name():
    class Special(nn.Conv2d):
        pass

    cases = {
        "is a Special": nn.Sequential(Special(2, 2, 3)),
        "is a ParametrizedConv2d": nn.Sequential(parametrizations.weight_norm(nn.Conv2d(2, 2, 3))),
    }
    hooked = nn.Conv2d(2, 2, 3)
    hooked.register_forward_hook(lambda module, args, output: output)
    cases["'0' has hooks"] = nn.Sequential(hooked)
    tied = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    tied[1].weight = tied[0].weight
    cases["'0' shares its parameters"] = tied
    for message, model in cases.items():
        with pytest.raises(UnsupportedLayerError, match=message):
            reparameterize_(model, DBB(), include=everything)
    with pytest.raises(ValueError, match="found no convolution"):
        reparameterize_(nn.Sequential(Special(2, 2, 3)), DBB())


def test_convolutions_that_are_never_called_are_left_or_refused():
    class Unused(SmallNet):
        def __init__(self):
            super().__init__()
            self.unused = nn.Conv2d(3, 3, 3)

    assert type(reparameterize_(Unused(), DBB()).unused) is nn.Conv2d
    with pytest.raises(UnsupportedLayerError, match=r"does not call 'unused'"):
        reparameterize_(Unused(), DBB(), include=everything)


def test_an_error_leaves_the_model_unchanged():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, (1, 3)))
    before = repr(model)
    with pytest.raises(UnsupportedLayerError):
        reparameterize_(model, ACB(), include=everything)
    assert repr(model) == before


def test_data_that_fails_leaves_the_model_unchanged():
    model = randomize_(SmallNet())
    before, expected = repr(model), evaluate(model, X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no batch"):
        reparameterize_(model, DBB(), optimizer=optimizer, data=[])
    assert repr(model) == before
    assert torch.equal(evaluate(model, X), expected)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


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


def test_shared_modules_stay_shared():
    model = randomize_(Shared())
    with torch.no_grad():
        model.first[0].weight.mul_(0.2)
    expected = evaluate(model, X)
    reparameterize_(model, DBB())
    assert model.first[0] is model.second["conv"]
    assert isinstance(model.first[0], BranchedConv2d)
    assert relative(expected, evaluate(model, X)) < 1e-4
    merged = merge(model)
    assert merged.first[0] is merged.second["conv"]
    assert relative(expected, evaluate(merged, X)) < 1e-4


def test_untraceable_models_need_example_inputs():
    class Dynamic(SmallNet):
        def forward(self, x):
            return super().forward(x) if x.sum() < 1e9 else x

    with pytest.raises(UnsupportedLayerError, match="example_inputs="):
        reparameterize_(Dynamic(), DBB())
    model = randomize_(Dynamic())
    expected = evaluate(model, X)
    reparameterize_(model, DBB(), example_inputs=X)
    assert type(model.stem_bn) is nn.Identity
    assert relative(expected, evaluate(model, X)) < 1e-5


def test_modes_dtypes_and_settings_carry_over():
    model = SmallNet().double().eval()
    model.res_bn.eps, model.res_bn.momentum = 1e-3, 0.3
    reparameterize_(model, DBB())
    assert not any(module.training for module in model.modules())
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    for module in model.res.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.eps, module.momentum) == (1e-3, 0.3)


def test_synchronized_batch_norms_stay_so():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(SmallNet())
    reparameterize_(model, DBB())
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 3 * 6
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)
    assert relative(evaluate(model, X), evaluate(merge(model), X)) < 1e-5


def test_wrapped_models():
    with pytest.raises(ValueError, match="before wrapping it in DataParallel"):
        reparameterize_(nn.DataParallel(SmallNet()), DBB())
    model = SmallNet()
    compiled = torch.compile(model, backend="eager")
    assert reparameterize_(compiled, DBB()) is compiled
    assert isinstance(model.stem, BranchedConv2d)


NETWORKS = [name for name in list_models() if not name.endswith("-imagenet") and not name.startswith(("pyra", "convn"))]


@pytest.mark.parametrize(
    ("name", "method"), [*((n, "dbb") for n in NETWORKS), ("resnet18", "acb"), ("vgg11", "repvgg")]
)
def test_the_networks_of_the_paper(name, method):
    model = disturb_statistics_(create_model(name, num_classes=10, width=0.125))
    x = torch.randn(2, 3, 32, 32)
    expected = evaluate(model, x)
    reparameterize_(model, METHODS[method])
    assert relative(expected, evaluate(model, x)) < 1e-4
    assert relative(expected, evaluate(merge(model), x)) < 1e-4


@pytest.mark.parametrize("method", [*METHODS.values(), RepOpt()], ids=lambda method: method.name)
def test_another_default_device_makes_no_difference(method):
    """The meta device stands for any other: whatever is created there by mistake cannot be computed with."""
    model, data = randomize_(SmallNet()), batches(2)
    expected = evaluate(model, X)
    with torch.device("meta"):
        reparameterize_(model, method, data=data)
        merged = merge(model)
        Branches(masks=[[[1, 1], [1, 1]]])
    assert relative(expected, evaluate(merged, X)) < 1e-5
