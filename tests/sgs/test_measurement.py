"""Measurements: how often they wait for the device, and how much memory they take."""

import pytest
import torch
from spatialgrad.sgs.measurement import Measurement
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from spatialgrad import Live
from spatialgrad.sgs.dependence import histogram
from spatialgrad.sgs.layers import observing
from spatialgrad.sgs.measure import estimator_factory
from support.common import (
    batches,
    images,
    loss_of,
    same_matrices,
    train_,
)
from support.live import build, hooks_on


class Waits(TorchDispatchMode):
    """Counts the operations, and those that wait for the device."""

    def __init__(self):
        super().__init__()
        self.operations, self.waits = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.append(str(func))
        self.waits += "_local_scalar_dense" in str(func) or "nonzero" in str(func)
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts what reads values without an operation of its own."""

    reads = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.reads += getattr(func, "__name__", "") in ("tolist", "cpu", "numpy")
        return func(*args, **(kwargs or {}))


class TestWaiting:
    def step(self, model, optimizer, batch):
        """What waits in a step: in its forward pass and in the optimizer's step."""
        with Waits() as dispatched, Reads() as functions:
            loss = loss_of(model, batch)
        loss.backward()
        with dispatched, functions:
            optimizer.step()
        return dispatched.waits + functions.reads, dispatched.operations

    @pytest.mark.parametrize("settings", [{}, {"drop_near": True}, {"dependence": "autocorrelation"}])
    def test_an_update_waits_twice_whatever_the_number_of_layers(self, monkeypatch, settings):
        # As on a GPU.
        monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
        monkeypatch.setattr(histogram, "_count_by_bincount_", histogram._count_by_scatter_)
        layers = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()) for _ in range(6)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model, optimizer, sgs = build(model, **settings)
        waits = [self.step(model, optimizer, (x, y % 3))[0] for x, y in batches(6)]
        assert sgs.num_updates == 1
        assert waits == [0, 0, 0, 1, 0, 1]

    def test_a_step_between_updates_has_one_more_operation_and_does_not_wait(self):
        model, optimizer, _ = build()
        plain, other, sgs = build()
        sgs.detach()
        (waits, mine), (_, reference) = self.step(model, optimizer, images()), self.step(plain, other, images())
        assert waits == 0
        assert len(mine) == len(reference) + 1
        assert mine.count("aten._foreach_mul_.List") == 1


class TestMemory:
    """Two batches of 8 images of 10×10: "first" counts 3 channels in 12 bins, "wide" and "last" 6 channels each."""

    def sizes(self):
        return {"first": 3 * 4 * 13**2 * 4, "wide": 6 * 13**2 * 4, "last": 6 * 4 * 12**2 * 4}

    def test_layers_that_take_turns_have_the_same_scalings_from_a_loader(self):
        whole = build(live=False)[2].update(batches(2))
        sizes = self.sizes()
        for memory in (sum(sizes.values()), max(sizes.values())):
            assert same_matrices(build(live=False, memory=memory)[2].update(batches(2)), whole)

    def test_channels_are_left_out_where_a_layer_needs_more(self):
        whole = build(live=False)[2].update(batches(2))
        fewer = build(live=False, memory=self.sizes()["last"] // 2)[2].update(batches(2))
        assert torch.equal(fewer["wide"], whole["wide"])
        for name in ("first", "last"):
            assert not torch.equal(fewer[name], whole[name])
            assert float((fewer[name] - whole[name]).abs().max()) < 0.3
        build(live=False, memory=1)[2].update(batches(2))  # one channel at least

    @pytest.mark.parametrize(
        ("kind", "drop_near", "memory"),
        [("mutual-information", False, 4000), ("mutual-information", True, 4000), ("autocorrelation", False, 1200)],
    )
    def test_counts_stay_within_the_bound(self, kind, drop_near, memory):
        model = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)])
        measurement = Measurement(
            {str(i): [conv] for i, conv in enumerate(model)},
            estimator_factory(kind, bins=9, drop_near=drop_near),
            memory=memory,
        )
        while not measurement.finished:
            with observing(measurement.observers()):
                model(images()[0])
            if measurement.number:
                active = [part for part in measurement._parts if part.turn == measurement.number]
                sizes = [sum(t.numel() * t.element_size() for t, _ in part.estimator.partials()) for part in active]
                assert 0 < sum(sizes) <= memory
            measurement.combine()
            measurement.end_pass()
        assert measurement.number > 2
        assert len(measurement.dependence()) == 4

    def test_layers_take_turns_in_further_steps(self):
        model, optimizer, sgs = build(live=Live(at=(2,), every=16, batches=2), memory=max(self.sizes().values()))
        observed = 0
        for batch in batches(14):
            train_(model, optimizer, [batch])
            observed += hooks_on(model) > 0
        assert (sgs.num_updates, observed) == (1, 6)
        assert all(not torch.equal(G, torch.ones_like(G)) for G in sgs.scalings.values())

    @pytest.mark.parametrize("memory", ["", "many", 0, -5, "0 MB", 1.5])
    def test_invalid_bounds(self, memory):
        with pytest.raises(ValueError, match="Invalid memory"):
            build(memory=memory)
