"""Which BatchNorm belongs to which convolution, in forward passes of every kind."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spatialgrad.models import create_model
from spatialgrad.reparam import UnsupportedLayerError
from spatialgrad.reparam.bn_tracing import following_batch_norms


class Net(nn.Module):
    """Registered in an order that has nothing to do with the forward pass."""

    def __init__(self):
        super().__init__()
        self.bn_b = nn.BatchNorm2d(4)
        self.conv_a = nn.Conv2d(4, 4, 3, padding=1)
        self.conv_b = nn.Conv2d(4, 4, 3, padding=1)
        self.bn_a = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn_b(self.conv_b(F.relu(self.bn_a(self.conv_a(x)))))


class Dynamic(Net):
    """The same, but not traceable."""

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        return super().forward(x)


# What a forward pass does with a convolution and a BatchNorm, and whether the two belong together.
VARIANTS = {
    "activation between": (lambda m, x: m.bn(F.relu(m.conv(x))), False),
    "in-place between": (lambda m, x: m.bn(m.conv(x).relu_()), False),
    "also read by a sum": (lambda m, x: (y := m.conv(x), m.bn(y) + y)[1], False),
    "also returned": (lambda m, x: (y := m.conv(x), m.bn(y)), False),
    "norm also of another": (lambda m, x: m.bn(m.conv(x)) + m.bn(m.other(x)), False),
    "norm of the sum": (lambda m, x: m.bn(m.conv(x) + m.other(x)), False),
    "twice, once without": (lambda m, x: m.conv(m.bn(m.conv(x))), False),
    "twice, each with the norm": (lambda m, x: m.bn(m.conv(m.bn(m.conv(x)))), True),
}


class Variant(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.run = forward
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.other = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.run(self, x)


X = torch.randn(2, 4, 6, 6)
both_ways = pytest.mark.parametrize("example", [None, X], ids=["traced", "watched"])


def find(model, example_inputs=None):
    convs = {name: module for name, module in model.named_modules() if type(module) is nn.Conv2d}
    return following_batch_norms(model, convs, example_inputs)


@both_ways
def test_the_forward_pass_decides_not_the_order_of_registration(example):
    model = Net()
    assert find(model, example) == {"conv_a": model.bn_a, "conv_b": model.bn_b}


@both_ways
@pytest.mark.parametrize("kind", VARIANTS)
def test_a_batch_norm_counts_if_it_reads_nothing_else_and_nothing_else_reads(kind, example):
    forward, belong = VARIANTS[kind]
    model = Variant(forward)
    found = find(model, example)
    assert found["conv"] is (model.bn if belong else None)
    assert ("other" in found) == ("other" in kind or ("sum" in kind and "norm" in kind))  # if it is called at all


def test_reading_a_shape_does_not_disturb_when_watched():
    model = Variant(lambda m, x: (y := m.conv(x), m.bn(y).reshape(y.shape[0], -1))[1])
    assert find(model, X)["conv"] is model.bn


def test_what_cannot_be_traced_is_an_error_that_names_the_layer_and_the_way_out():
    with pytest.raises(UnsupportedLayerError, match=r"'conv_a', 'conv_b'.*cannot be traced.*example_inputs="):
        find(Dynamic())
    model = Dynamic()
    assert find(model, X) == {"conv_a": model.bn_a, "conv_b": model.bn_b}


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.inner(x)) if x.sum() < 1e9 else x


def test_traceable_parts_of_an_untraceable_model_are_traced():
    model = Outer(Net())
    assert find(model) == {"inner.conv_a": model.inner.bn_a, "inner.conv_b": model.inner.bn_b}


class Opaque(nn.Module):
    """Untraceable, but none of our business."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def test_what_other_modules_do_inside_does_not_matter():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), Opaque(), nn.Conv2d(4, 4, 3), Opaque())
    assert find(model) == {"0": model[1], "3": None}


def test_an_output_that_leaves_the_traceable_part_is_undecided():
    model = Outer(nn.Sequential(nn.Conv2d(4, 4, 3)))
    with pytest.raises(UnsupportedLayerError, match="its output leaves 'inner'"):
        find(model)
    assert find(model, X) == {"inner.0": model.bn}


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x, mask=None):
        y = self.conv(x)
        if mask is not None:
            y = y * mask
        return self.bn(y)


def test_optional_arguments_stay_at_their_defaults():
    model = Masked()
    assert find(model)["conv"] is model.bn
    assert find(model, {"x": X, "mask": torch.ones(())})["conv"] is None
    assert find(model, (X,))["conv"] is model.bn


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4, track_running_stats=False), nn.InstanceNorm2d(4)])
def test_other_norms_are_not_taken(norm):
    assert find(nn.Sequential(nn.Conv2d(4, 4, 3), norm)) == {"0": None}


class Subclass(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu(super().forward(x))


@both_ways
def test_a_subclass_that_may_do_more_is_not_taken(example):
    assert find(nn.Sequential(nn.Conv2d(4, 4, 3), Subclass(4)), example) == {"0": None}


def test_watching_leaves_no_trace():
    model = Dynamic().train()
    model.bn_a.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    find(model, X)
    assert model.training
    assert not model.bn_a.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "mobilenetv2", "preactresnet18", "shufflenet"])
def test_tracing_and_watching_agree_on_real_networks(name):
    model = create_model(name, num_classes=10, width=0.25)
    traced = find(model)
    assert traced == find(model, torch.randn(1, 3, 32, 32))
    assert sum(bn is not None for bn in traced.values()) >= 8
