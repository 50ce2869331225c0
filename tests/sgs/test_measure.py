"""Measuring through `SpatialGradientScaling.update`: right values, and nothing else changes."""

import copy
import math
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import (
    NoEffectWarning,
    SpatialGradientScaling,
    autocorrelation,
    normalized_mutual_information,
    scaling_from_dependence,
)
from support.common import same_matrices
from support.scaling import build, images, measured, small_net, train


class TestMeasuring:
    def test_the_scaling_is_that_of_the_pure_functions_on_the_layer_s_input(self):
        model, _, sgs = build(k=4)
        batches = [images(), images()]
        G = sgs.update(batches)
        model.eval()
        x = torch.cat(batches)
        with torch.no_grad():
            inner = model[:3](x)
        expected = {
            "0": scaling_from_dependence(normalized_mutual_information(x, 3, padding=1), 4),
            "3": scaling_from_dependence(normalized_mutual_information(inner, (1, 3), padding=(0, 1)), 4),
        }
        assert set(G) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(G[name], value.float(), atol=1e-4, rtol=0)

    @pytest.mark.parametrize("options", [{"bins": 12}, {"drop_near": True}, {"dependence": "autocorrelation"}])
    def test_options_reach_the_measure(self, options):
        x = images()
        _, _, sgs = build(**options)
        if "dependence" in options:
            S = autocorrelation(x, 3, padding=1)
        else:
            S = normalized_mutual_information(x, 3, padding=1, **options)
        torch.testing.assert_close(sgs.update(x)["0"], scaling_from_dependence(S).float())

    def test_a_function_of_the_user(self):
        calls = []

        def distance(maps, kernel_size, *, padding, dilation, padding_mode):
            calls.append((tuple(maps.shape), kernel_size, padding, dilation, padding_mode))
            axes = torch.meshgrid(*(torch.arange(k) - k // 2 for k in kernel_size), indexing="ij")
            return (1 / (1 + sum(a.abs() for a in axes))).expand(maps.shape[1], *kernel_size)

        _, _, sgs = build(measure=distance, k=1)
        G = sgs.update([images(4), images(8)])["3"]
        torch.testing.assert_close(G, torch.tensor([[0.75, 1.5, 0.75]]))
        assert calls[0] == ((4, 3, 12, 12), (3, 3), (1, 1), (1, 1), "zeros")
        assert "distance" in repr(sgs)

    def test_a_function_of_the_user_with_the_wrong_shape(self):
        _, _, sgs = build(measure=lambda maps, kernel_size, **_: torch.ones(2, 2))
        with pytest.raises(ValueError, match=r"'0'.*\(2, 2\).*\(3, 3, 3\)"):
            sgs.update(images())

    def test_batches_of_every_kind(self):
        x, y = images(), torch.zeros(16)
        expected = measured(x)["0"]

        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = small_net()

            def forward(self, pixel_values, labels=None):
                return self.net(pixel_values)

        assert torch.equal(measured([(x, y)])["0"], expected)
        assert torch.equal(measured((x, y))["0"], expected)
        assert torch.equal(measured((x, x))["0"], expected)  # a target may be an image, too
        assert torch.equal(build()[2].update(DataLoader(TensorDataset(x, y), 8), 2)["0"], expected)
        assert torch.equal(measured({"pixel_values": x, "labels": y}, Named())["net.0"], expected)
        odd = {"deep": [x]}
        assert torch.equal(build()[2].update([odd], forward=lambda m, b: m(b["deep"][0]))["0"], expected)

    def test_unbatched_input(self):
        model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), images(1)
        assert torch.equal(measured([x[0]], model)["0"], measured(x, model)["0"])

    def test_shared_modules_pool_their_statistics(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 3, 3, padding=1)

            def forward(self, x):
                self.conv(x[:, :, :6, :6] * 3)
                return self.conv(x)

        x = images()
        estimated = measured(x, Twice())["conv"]
        # the same as both inputs, one after the other, through a model that calls it once
        once = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 3, padding=1)})
        pooled = build(once)[2].update([x, x[:, :, :6, :6] * 3], forward=lambda m, b: m["conv"](b))["conv"]
        assert torch.equal(estimated, pooled)

    def test_a_weight_shared_by_other_dilations_is_measured_at_each(self):
        class Trident(nn.Module):
            def __init__(self):
                super().__init__()
                self.near = nn.Conv2d(3, 4, 3, padding=1)
                self.far = nn.Conv2d(3, 4, 3, padding=3, dilation=3)
                self.far.weight = self.near.weight

            def forward(self, x):
                return self.near(x) + self.far(x)

        x = images()
        S = [normalized_mutual_information(x, 3, padding=d, dilation=d) for d in (1, 3)]
        expected = scaling_from_dependence(torch.cat(S)).float()
        torch.testing.assert_close(measured(x, Trident())["near"], expected)

    def test_modules_that_share_a_weight_pool_their_pixels(self):
        model = nn.ModuleDict({name: nn.Conv2d(3, 4, 3, padding=1) for name in "ab"})
        model["b"].weight = model["a"].weight
        x, y = images(), images() * 2
        pooled = build(model)[2].update([x], forward=lambda m, _: (m["a"](x), m["b"](y)))["a"]
        expected = scaling_from_dependence(normalized_mutual_information(torch.cat([x, y]), 3, padding=1)).float()
        torch.testing.assert_close(pooled, expected)

    def test_a_layer_that_gets_an_empty_batch(self):
        _, _, sgs = build()
        x = images()
        expected = measured(x)["0"]
        G = sgs.update([x], forward=lambda model, batch: (model[0](batch[:0]), model(batch)))
        assert torch.equal(G["0"], expected)

    def test_an_input_by_another_keyword(self):
        class Renamed(nn.Conv2d):
            def forward(self, x):
                return super().forward(x)

        x = images()
        model = nn.Sequential(Renamed(3, 8, 3, padding=1))
        G = build(model)[2].update([x], forward=lambda m, batch: m[0](x=batch))["0"]
        torch.testing.assert_close(G, measured(x, model)["0"])

    def test_the_user_s_own_hooks_change_the_input_first(self):
        """As they do in training: what the convolution gets is measured."""
        x = images()
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1))
        expected = measured(x**3, model)["0"]
        assert not torch.allclose(measured(x, model)["0"], expected, atol=1e-3)
        model[0].register_forward_pre_hook(lambda _, args: (args[0] ** 3,))
        assert torch.equal(measured(x, model)["0"], expected)

    def test_a_measure_in_single_precision_may_miss_1_by_rounding(self):
        def rounded(maps, kernel_size, **_):
            return torch.full((maps.shape[1], *kernel_size), 1 + 1e-6)

        assert torch.equal(measured(images(), measure=rounded)["0"], torch.ones(3, 3))
        with pytest.raises(ValueError, match="Cannot scale '0': S must lie between 0 and 1"):
            measured(images(), measure=lambda maps, size, **_: torch.full((maps.shape[1], *size), 2.0))

    def test_compiled_models_are_measured_as_they_are(self):
        x = images()
        expected = measured(x)["0"]
        model = small_net()
        compiled = torch.compile(model, backend="eager")
        compiled(x)
        optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
        assert torch.equal(SpatialGradientScaling(compiled, optimizer).update(x)["0"], expected)

    def test_layers_without_information_keep_ones_and_are_reported_once(self):
        _, _, sgs = build()
        with pytest.warns(NoEffectWarning, match="0 have inputs without information"):
            G = sgs.update(torch.zeros(4, 3, 12, 12))
        assert torch.equal(G["0"], torch.ones(3, 3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sgs.update(torch.zeros(4, 3, 12, 12))

    def test_exactly_independent_pixels_keep_ones_and_are_reported_once(self):
        # Each pair of neighbours (11, 12, 22, 21) is as frequent as it is for independent pixels. An even kernel has
        # no centre, where S would be 1.
        model = nn.Sequential(nn.Conv1d(1, 2, 2, dilation=2))
        x = torch.tensor([1.0, 1.0, 2.0, 2.0] * 4 + [1.0]).repeat(2, 1, 1)
        model, optimizer, sgs = build(model)
        with pytest.warns(NoEffectWarning, match="0 have inputs without spatial dependence"):
            G = sgs.update(x)
        assert torch.equal(G["0"], torch.ones(2))
        sgs.update(x)  # warnings are errors here
        model(x).sum().backward()
        optimizer.step()
        assert all(p.isfinite().all() for p in model.parameters())

    def test_a_function_that_returns_zeros_keeps_ones_and_is_reported_once(self):
        _, _, sgs = build(measure=lambda maps, size, **_: torch.zeros(maps.shape[1], *size))
        with pytest.warns(NoEffectWarning, match="0, 3 have inputs without spatial dependence"):
            G = sgs.update(images())
        assert torch.equal(G["0"], torch.ones(3, 3))
        sgs.update(images())

    def test_a_tiny_k(self):
        G = measured(images(), k=1e-17)["0"]
        assert (G > 0).all()
        assert float(G.mean()) == pytest.approx(1)
        assert float(G[1, 1]) == pytest.approx(9, rel=1e-3)

    def test_layers_that_are_not_called_are_reported(self):
        _, _, sgs = build()
        with pytest.warns(NoEffectWarning, match="3 were not called"):
            sgs.update([images()], forward=lambda model, batch: model[0](batch))


class TestDependence:
    def test_the_mean_over_informative_channels(self):
        _, _, sgs = build()
        assert sgs.dependence == {}
        x = images()
        x[:, 1] = 0.5  # constant, but for the border of zeros
        x[:, 2] = 0
        sgs.update(x)
        S = normalized_mutual_information(x, 3, padding=1)
        assert S[2].isnan().all()
        torch.testing.assert_close(sgs.dependence["0"], S[:2].mean(0))
        assert sgs.dependence["3"].shape == (1, 3)
        assert sgs.measure == "mutual-information"

    def test_with_k_1_the_scaling_is_the_dependence(self):
        _, _, sgs = build(k=1, measure="autocorrelation")
        G = sgs.update(images())
        for name, S in sgs.dependence.items():
            torch.testing.assert_close(G[name], (S / S.mean()).float())

    def test_a_layer_without_information_has_none(self):
        _, _, sgs = build()
        sgs.update(images())
        assert set(sgs.dependence) == {"0", "3"}
        other = torch.rand(4, 8, 9, 9)
        with pytest.warns(NoEffectWarning, match="0 have inputs without information"):
            sgs.update([torch.zeros(4, 3, 12, 12)], forward=lambda model, x: (model[0](x), model[3](other)))
        assert set(sgs.dependence) == {"3"}

    def test_a_layer_that_is_not_called_keeps_the_last_one(self):
        _, _, sgs = build()
        sgs.update(images())
        before = sgs.dependence
        with pytest.warns(NoEffectWarning, match="3 were not called"):
            sgs.update([images()], forward=lambda model, x: model[0](x))
        assert torch.equal(sgs.dependence["3"], before["3"])
        assert not torch.equal(sgs.dependence["0"], before["0"])


class TestNothingElseChanges:
    def test_parameters_buffers_flags_hooks_random_states_and_gradients(self):
        model, optimizer, sgs = build()
        train(model, optimizer)
        model[1].eval()
        calls = []
        model[0].register_forward_hook(lambda *_: calls.append(1))
        before = copy.deepcopy(model.state_dict())
        gradients = [p.grad.clone() for p in model.parameters()]
        flags = [m.training for m in model.modules()]
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        loader = DataLoader(TensorDataset(images(40), torch.zeros(40)), 8, shuffle=True)
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

        sgs.update(loader, batches=2)

        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
        assert [m.training for m in model.modules()] == flags
        assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert np.random.get_state()[1].tolist() == states[2]
        assert torch.is_grad_enabled()

    def test_buffers_that_are_written_even_in_evaluation_mode(self):
        class Busy(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)
                self.norm = nn.BatchNorm2d(3)
                self.register_buffer("calls", torch.zeros(()))
                self.register_buffer("cache", torch.zeros(1))

            def forward(self, x):
                self.calls += 1
                self.cache = x.mean((0, 2, 3))
                self.norm.train()
                return self.conv(self.norm(x))

        model, _, sgs = build(Busy())
        places = {name: buffer.data_ptr() for name, buffer in model.named_buffers()}
        before = copy.deepcopy(model.state_dict())
        sgs.update(images())
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert {name: buffer.data_ptr() for name, buffer in model.named_buffers()} == places

    def test_buffers_that_are_resized_or_created(self):
        class Observed(nn.Module):
            """As quantization-aware training before its first pass."""

            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))
                self.register_buffer("low", torch.zeros(0))
                self.register_buffer("table", torch.zeros(7))
                self.register_buffer("cache", None)
                self.register_parameter("gain", None)
                self.conv = nn.Conv2d(3, 4, 3)
                self.register_buffer("last", torch.zeros(()))

            def forward(self, x):
                self.calls += 1
                self.low.resize_(3).copy_(x.amin((0, 2, 3)))
                self.table.resize_(0)
                self.cache = x.mean()
                self.gain = nn.Parameter(torch.ones(3))
                self.register_buffer("unheard", x.mean())
                self.last += 1
                return self.conv(x)

        model, _, sgs = build(Observed())
        before = copy.deepcopy(model.state_dict())
        sgs.update(images())
        assert same_matrices(model.state_dict(), before)
        assert model.cache is None
        assert model.gain is None
        assert not hasattr(model, "unheard")

    def test_layers_that_are_created(self):
        class Growing(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)

            def forward(self, x):
                if not hasattr(self, "head"):
                    self.head = nn.Conv2d(4, 2, 3)
                return self.head(self.conv(x))

        model, _, sgs = build(Growing())
        sgs.update(images())
        assert [name for name, _ in model.named_children()] == ["conv"]

    def test_a_backward_pass_that_is_still_to_come(self):
        class Scaled(nn.Module):
            """Backward needs the buffers as they were in forward."""

            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)
                self.norm = nn.BatchNorm2d(4).eval()
                self.register_buffer("gain", torch.full((1,), 3.0))
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls += 1
                return self.norm(self.conv(x)) * self.gain

        x, gradients = images(), []
        for update in (False, True):
            torch.manual_seed(0)
            model, _, sgs = build(Scaled())
            loss = model(x).square().sum()
            if update:
                sgs.update(x)
            loss.backward()
            gradients.append(model.conv.weight.grad)
        assert torch.equal(*gradients)

    def test_the_weights_of_lazy_layers_are_not_initialized(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        sgs = SpatialGradientScaling(model, optimizer)
        with pytest.raises(ValueError, match=r"1.weight, .*3.bias, .* are not initialized: run the model once"):
            sgs.update(images())
        assert isinstance(model[3], nn.LazyLinear)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_the_loader_s_own_order(self, workers):
        def orders(update):
            torch.manual_seed(5)
            _, _, sgs = build()
            data = TensorDataset(images(32), torch.arange(32))
            loader = DataLoader(data, 8, shuffle=True, num_workers=workers)
            seen = []
            for _ in range(2):
                if update:
                    sgs.update(loader, batches=2)
                seen.append([y.tolist() for _, y in loader])
            return seen

        assert orders(update=True) == orders(update=False)

    def test_an_error_changes_nothing(self):
        model, _, sgs = build()
        sgs.update(images())
        G, S = sgs.scalings, sgs.dependence
        good, bad = images(), images()
        bad[3, 1, 2, 2] = math.nan
        flags = [m.training for m in model.modules()]
        state = torch.get_rng_state()
        with pytest.raises(ValueError, match=r"input of '0'.*NaN or infinite"):
            sgs.update([good, bad])
        assert same_matrices(sgs.scalings, G)
        assert same_matrices(sgs.dependence, S)
        assert sgs.num_updates == 1
        assert [m.training for m in model.modules()] == flags
        assert torch.equal(torch.get_rng_state(), state)
        assert not any(m._forward_pre_hooks for m in model.modules())

    def test_the_layer_with_infinite_values_is_named(self):
        model, _, sgs = build()
        model[1].running_var.fill_(0)
        model[1].eps = 0
        with pytest.raises(ValueError, match="input of '3'"):
            sgs.update(images())


class TestBadInput:
    def test_an_empty_loader(self):
        _, _, sgs = build()
        with pytest.raises(ValueError, match="loader is empty"):
            sgs.update([])
        with pytest.raises(ValueError, match="loader is empty"):
            sgs.update(DataLoader(TensorDataset(images(4)), 8, drop_last=True))

    def test_fewer_batches_than_asked_for(self):
        _, _, sgs = build()
        with pytest.warns(UserWarning, match="only 1 of the requested 3 batches"):
            sgs.update(DataLoader(TensorDataset(images(4)), 8), batches=3)
        assert sgs.num_updates == 1

    def test_a_loader_that_cannot_repeat_itself(self):
        class Restless:
            def __iter__(self):
                generator = torch.Generator()
                generator.seed()
                return iter([torch.rand(4, 3, 12, 12, generator=generator) for _ in range(2)])

        _, _, sgs = build()
        with pytest.warns(UserWarning, match="different batches on its second pass"):
            sgs.update(Restless())

    def test_targets_that_are_not_numbers_are_no_other_batches(self):
        x = images()
        measured([(x, torch.full((16,), math.nan)), (x, torch.ones(16, dtype=torch.complex64))])

    def test_errors_of_the_model_come_through(self):
        _, _, sgs = build()
        with pytest.raises(RuntimeError, match="channels"):
            sgs.update(torch.rand(2, 5, 12, 12))

    def test_batches_that_do_not_fit_the_model_point_to_forward(self):
        _, _, sgs = build()
        with pytest.raises(TypeError, match=r"Sequential.forward\(\) does not fit .* image, label .*forward=lambda"):
            sgs.update([{"image": images(), "label": torch.zeros(16)}])
        whole = (images() * 255).to(torch.uint8)
        for data in (whole, [(whole, 0)]):
            with pytest.raises(TypeError, match=r"uint8 images.*\.float\(\) / 255"):
                sgs.update(data)
        with pytest.raises(TypeError, match="int64 images"):
            sgs.update(whole.long())
        for data in (images().numpy(), [(images().numpy(), 0)], {"input": images().numpy()}):
            with pytest.raises(TypeError, match=r"NumPy arrays.*torch\.from_numpy"):
                sgs.update(data)
        with pytest.raises(TypeError, match="uint8 images"):
            sgs.update({"input": whole})
        with pytest.raises(TypeError, match="str"):  # the convolution's own error
            sgs.update([["a.png", "b.png"]])
        assert sgs.num_updates == 0

    @pytest.mark.parametrize("batches", [0, -1, 1.5, True])
    def test_an_invalid_number_of_batches(self, batches):
        _, _, sgs = build()
        with pytest.raises(ValueError, match=f"Invalid batches: {batches}; it must be an integer"):
            sgs.update([images()], batches=batches)

    def test_models_that_convert_their_input_are_left_alone(self):
        class Converting(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)

            def forward(self, x):
                return self.conv(torch.as_tensor(x).float())

        for x in ((images() * 255).to(torch.uint8), images().numpy()):
            measured([x], Converting())
