"""A device is a device: nothing waits for it in a step, nothing mixes two, and other devices are left alone."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from spatialgrad import (
    Live,
    SpatialGradientScaling,
    explain,
    normalized_mutual_information,
    scaling_from_ratios,
)
from spatialgrad.sgs.dependence import histogram
from spatialgrad.sgs.layers import ScaledLayer
from spatialgrad.sgs.measure import Measurement
from spatialgrad.sgs.settings import Settings
from support.common import batches, images, loss_of, same_matrices
from support.live import build
from support.scaling import build as build_small
from support.scaling import images as small_images


class Waits(TorchDispatchMode):
    """Counts the operations, and those that wait for the device."""

    def __init__(self):
        super().__init__()
        self.operations, self.waits = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.append(str(func))
        self.waits += any(name in str(func) for name in ("_local_scalar_dense", "nonzero", "equal"))
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts what reads values without an operation of its own."""

    reads = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.reads += getattr(func, "__name__", "") in ("tolist", "cpu", "numpy")
        return func(*args, **(kwargs or {}))


def step(model, optimizer, batch):
    """How often a step waits, in its forward pass and in the optimizer's step; and the operations of the latter."""
    with Waits() as forward, Reads() as functions:
        loss = loss_of(model, batch)
    loss.backward()
    with Waits() as stepping, functions:
        optimizer.step()
    return forward.waits + stepping.waits + functions.reads, stepping.operations


class TestWaiting:
    @pytest.mark.parametrize("settings", [{}, {"drop_near": True}, {"measure": "autocorrelation"}])
    def test_an_update_waits_once_per_layer_and_steps_do_not(self, monkeypatch, settings):
        # As on a GPU.
        monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
        monkeypatch.setattr(histogram, "_count_by_bincount_", histogram._count_by_scatter_)
        layers = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()) for _ in range(6)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model, optimizer, sgs = build(model, **settings)
        waits = [step(model, optimizer, (x, y % 3))[0] for x, y in batches(8)]
        assert sgs.num_updates == 1
        assert waits == [0, 0, 0, 0, 0, len(layers), 0, 0]

    @pytest.mark.parametrize(("apply", "more"), [("gradient", "mul"), ("update", "copy lerp")])
    def test_a_step_has_few_operations_whatever_the_number_of_layers(self, apply, more):
        model, optimizer, _ = build(apply=apply)
        plain, other, sgs = build(apply=apply)
        sgs.detach()
        for _ in range(2):  # the first step makes the buffers
            _, operations = step(model, optimizer, images())
            _, reference = step(plain, other, images())
        for name in reference:
            operations.remove(name)
        calculated = [name.split(".")[1] for name in operations if "detach" not in name]
        assert calculated == [f"_foreach_{name}_" for name in more.split()]


class TestDevices:
    @pytest.mark.parametrize("apply", ["gradient", "update"])
    def test_a_step_mixes_no_devices(self, apply):
        """On the meta device, any other device and any look at a value are errors."""
        with torch.device("meta"):
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sgs = SpatialGradientScaling(model, optimizer, measure=None, apply=apply)
        sgs.set_scalings(scaling_from_ratios(2, 4))  # from the CPU
        for _ in range(2):
            model(torch.empty(2, 3, 8, 8, device="meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert {layer.buffer(layer.weight).device.type for layer in sgs._layers.values()} == {"meta"}

    @pytest.mark.parametrize("settings", [Settings(), Settings(drop_near=True), Settings(measure="autocorrelation")])
    def test_statistics_are_where_the_maps_are(self, settings):
        """Weights may be elsewhere: offloaded by FSDP, or moved after the scaling was built."""
        measurement = Measurement([ScaledLayer("conv", [nn.Conv2d(3, 4, 3)])], settings)
        (observer,) = measurement.observers
        while not measurement.finished:
            observer.observe(torch.empty(2, 3, 8, 8, device="meta"))
            measurement.end_pass()
        assert observer.estimator.dependence().device.type == observer.estimator.invalid.device.type == "meta"

    def test_a_model_that_is_moved_after_its_scaling_was_built(self, device):
        model, optimizer, sgs = build(live=Live(at=(0,), every=9, batches=1))
        model.to(device)
        for x, y in batches(4):
            optimizer.zero_grad()
            loss_of(model, (x.to(device), y.to(device))).backward()
            optimizer.step()
        assert sgs.num_updates == 1
        assert {G.device.type for G in sgs.scalings.values()} == {device.type}

    @pytest.mark.skipif(torch.__version__ < (2, 7), reason="Adam of 2.6 counts its steps on the default device")
    def test_a_default_device_is_not_that_of_everything(self):
        """The meta device stands in for cuda in torch.set_default_device("cuda")."""
        x, G = small_images(), scaling_from_ratios(2, 4)
        model, _, sgs = build_small(apply="auto")

        def everything():
            optimizer = torch.optim.Adam(model.parameters())
            sgs.attach(optimizer)
            assert sgs.apply == "update"
            results = {
                **sgs.update(x),
                "S": normalized_mutual_information(x, 3, padding=1, padding_mode="circular"),
                "ratios": scaling_from_ratios(2, 4),
                "explained": explain(G).fit,
            }
            assert "(assumed)" not in repr(sgs)
            return results

        plain = everything()
        with torch.device("meta"):
            elsewhere = everything()
        assert same_matrices(plain, elsewhere)
