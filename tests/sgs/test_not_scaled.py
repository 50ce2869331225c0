"""Convolutions that are not scaled are reported: those without a module, and those that came later."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from spatialgrad import Live, NoEffectWarning, SpatialGradientScaling, scaling_from_ratios
from support.scaling import build, images, small_net, train


class Functional(nn.Module):
    """Convolves with parameters of its own."""

    def __init__(self, transform=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.kernel = nn.Parameter(torch.rand(4, 4, 3, 3))
        self.point = nn.Parameter(torch.rand(4, 4, 1, 1))
        self.bias = nn.Parameter(torch.rand(4, 1, 1))
        self.register_buffer("blur", torch.ones(4, 1, 5, 5))
        self.transform = transform

    def forward(self, x):
        kernel = self.kernel if self.transform is None else self.transform(self.kernel)
        x = F.conv2d(self.conv(x), kernel) + self.bias
        x = F.conv2d(x, self.blur * 0.1, groups=4)
        return F.conv2d(x, weight=self.point)


def standardized(kernel):
    return kernel - kernel.mean((1, 2, 3), keepdim=True)


def step(model, optimizer, x=None):
    optimizer.zero_grad()
    model(images() if x is None else x).sum().backward()
    optimizer.step()


class TestConvolutionsWithoutAModule:
    @pytest.mark.parametrize("transform", [None, standardized])
    def test_reported_once_by_updates(self, transform):
        _, _, sgs = build(Functional(transform))
        with pytest.warns(NoEffectWarning, match="kernel are parameters that the model convolves with by itself"):
            sgs.update(images())
        assert list(sgs.skipped) == ["kernel"]
        sgs.update(images())  # warnings are errors here

    @pytest.mark.parametrize("transform", [None, standardized])
    def test_reported_once_by_live_updates(self, transform):
        model, optimizer, sgs = build(Functional(transform), live=Live(at=(1,), every=4, batches=1))
        step(model, optimizer)
        with pytest.warns(NoEffectWarning, match="kernel are parameters that the model convolves with by itself"):
            model(images())
        assert list(sgs.skipped) == ["kernel"]
        for _ in range(8):
            step(model, optimizer)  # warnings are errors here
        assert sgs.num_updates == 2

    def test_a_live_update_leaves_no_hooks(self):
        model, optimizer, sgs = build(live=Live(at=(1,), every=9, batches=1))
        step(model, optimizer)
        assert len(model._forward_hooks) == 1
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            copied(images())
        for _ in range(2):
            step(model, optimizer)
        assert sgs.num_updates == 1
        assert not model._forward_hooks

    def test_recomputed_activations_are_not_touched(self):
        class Checkpointed(Functional):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=False)

        model, optimizer, sgs = build(Checkpointed(), live=Live(at=(0,), every=9, batches=1))
        with pytest.warns(NoEffectWarning, match="kernel are parameters"):
            step(model, optimizer)
        assert list(sgs.skipped) == ["kernel"]

    def test_a_model_of_nothing_else(self):
        class Bare(nn.Module):
            def __init__(self):
                super().__init__()
                self.kernel = nn.Parameter(torch.rand(4, 3, 3, 3))

        with pytest.raises(ValueError, match=r"Bare has no convolution to scale: it has no .* such as nn\.Conv2d"):
            build(Bare())


class TestNewcomers:
    def test_noticed_by_updates(self):
        model = small_net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD([*model[0].parameters(), *model[8].parameters()], lr=0.1)
        model.append(nn.Unflatten(1, (1, 5)))
        model.append(nn.Conv1d(1, 1, 3))
        optimizer.add_param_group({"params": model[10].parameters()})
        sgs = SpatialGradientScaling(model, optimizer)
        sgs.update(images())
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[3].parameters()})
        with pytest.warns(NoEffectWarning, match="0, 3 can be trained only since .* create it again"):
            sgs.update(images())
        sgs.update(images())

    @pytest.mark.parametrize("change", ["unfrozen", "added"])
    def test_noticed_by_a_step_with_static_scalings(self, change):
        model = small_net()
        model[0].requires_grad_(change == "added")
        optimizer = torch.optim.SGD(model[3:].parameters(), lr=0.1)
        if change == "unfrozen":
            optimizer.add_param_group({"params": model[0].parameters()})
        SpatialGradientScaling(model, optimizer, measure=None, scalings=scaling_from_ratios(2, 4).mean(0)[None])
        train(model, optimizer)
        if change == "unfrozen":
            model[0].requires_grad_(True)
        else:
            optimizer.add_param_group({"params": model[0].parameters()})
        with pytest.warns(NoEffectWarning, match="0 can be trained only since .* create it again"):
            train(model, optimizer, steps=1)
        train(model, optimizer)  # warnings are errors here

    def test_new_modules(self):
        model, optimizer, sgs = build()
        sgs.update(images())
        model[2] = nn.Conv2d(8, 8, 3, padding=1)
        optimizer.add_param_group({"params": model[2].parameters()})
        with pytest.warns(NoEffectWarning, match="2 can be trained only since .* create it again"):
            sgs.update(images())

    def test_new_modules_where_the_user_chooses(self):
        model, optimizer, sgs = build(include=lambda name, module: name == "0")
        model[2] = nn.Conv2d(8, 8, 3, padding=1)
        optimizer.add_param_group({"params": model[2].parameters()})
        sgs.update(images())  # warnings are errors here
