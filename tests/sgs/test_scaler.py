import copy
import io
import math
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import (
    NoEffectWarning,
    SpatialGradientScaling,
    autocorrelation,
    normalized_mutual_information,
    scale_gradients_,
    scaling_from_dependence,
    scaling_from_ratios,
)
from spatialgrad.sgs import step_hook


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, (1, 3), padding=(0, 1)),
        nn.Dropout(0.5),
        nn.Conv2d(8, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def images(number=16):
    return F.avg_pool2d(torch.rand(number, 3, 12, 12), 3, 1, 1)


def build(model=None, **settings):
    model = model or small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, SpatialGradientScaling(model, optimizer, **settings)


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images()), torch.randint(0, 5, (16,))).backward()
        optimizer.step()


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

        _, _, sgs = build(dependence=distance, k=1)
        G = sgs.update([images(4), images(8)])["3"]
        torch.testing.assert_close(G, torch.tensor([[0.75, 1.5, 0.75]]))
        assert calls[0] == ((4, 3, 12, 12), (3, 3), (1, 1), (1, 1), "zeros")
        assert "distance" in repr(sgs)

    def test_a_function_of_the_user_with_the_wrong_shape(self):
        _, _, sgs = build(dependence=lambda maps, kernel_size, **_: torch.ones(2, 2))
        with pytest.raises(ValueError, match=r"'0'.*\(2, 2\).*\(3, 3, 3\)"):
            sgs.update(images())

    def test_batches_of_every_kind(self):
        x, y = images(), torch.zeros(16)
        expected = build()[2].update(x)["0"]

        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = small_net()

            def forward(self, pixel_values, labels=None):
                return self.net(pixel_values)

        assert torch.equal(build()[2].update([(x, y)])["0"], expected)
        assert torch.equal(build()[2].update((x, y))["0"], expected)
        assert torch.equal(build()[2].update((x, x))["0"], expected)  # a target may be an image, too
        assert torch.equal(build()[2].update(DataLoader(TensorDataset(x, y), 8), 2)["0"], expected)
        assert torch.equal(build(Named())[2].update({"pixel_values": x, "labels": y})["net.0"], expected)
        odd = {"deep": [x]}
        assert torch.equal(build()[2].update([odd], forward=lambda m, b: m(b["deep"][0]))["0"], expected)

    def test_unbatched_input(self):
        model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), images(1)
        assert torch.equal(build(model)[2].update([x[0]])["0"], build(model)[2].update(x)["0"])

    def test_shared_modules_pool_their_statistics(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 3, 3, padding=1)

            def forward(self, x):
                self.conv(x[:, :, :6, :6] * 3)
                return self.conv(x)

        x = images()
        estimated = build(Twice())[2].update(x)["conv"]
        # the same as both inputs, one after the other, through a model that calls it once
        once = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 3, padding=1)})
        pooled = build(once)[2].update([x, x[:, :, :6, :6] * 3], forward=lambda m, b: m["conv"](b))["conv"]
        assert torch.equal(estimated, pooled)

    def test_modules_that_share_a_weight_are_scaled_once(self):
        model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Conv2d(3, 3, 3, padding=1, bias=False))
        model[1].weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        G = scaling_from_ratios(2, 4)
        SpatialGradientScaling(model, optimizer, dependence=None, scalings=G)
        model(images()).sum().backward()
        gradient, before = model[0].weight.grad.clone(), model[0].weight.detach().clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight, before - gradient * G.float())

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
        torch.testing.assert_close(build(Trident())[2].update(x)["near"], expected)

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
        expected = build()[2].update(x)["0"]
        G = sgs.update([x], forward=lambda model, batch: (model[0](batch[:0]), model(batch)))
        assert torch.equal(G["0"], expected)

    def test_an_input_by_another_keyword(self):
        class Renamed(nn.Conv2d):
            def forward(self, x):
                return super().forward(x)

        x = images()
        model = nn.Sequential(Renamed(3, 8, 3, padding=1))
        G = build(model)[2].update([x], forward=lambda m, batch: m[0](x=batch))["0"]
        torch.testing.assert_close(G, build(model)[2].update(x)["0"])

    def test_a_measure_in_single_precision_may_miss_1_by_rounding(self):
        def rounded(maps, kernel_size, **_):
            return torch.full((maps.shape[1], *kernel_size), 1 + 1e-6)

        assert torch.equal(build(dependence=rounded)[2].update(images())["0"], torch.ones(3, 3))
        with pytest.raises(ValueError, match="Cannot scale '0': S must lie between 0 and 1"):
            build(dependence=lambda maps, size, **_: torch.full((maps.shape[1], *size), 2.0))[2].update(images())

    def test_compiled_models_are_measured_as_they_are(self):
        x = images()
        expected = build()[2].update(x)["0"]
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

    def test_layers_that_are_not_called_are_reported(self):
        _, _, sgs = build()
        with pytest.warns(NoEffectWarning, match="3 were not called"):
            sgs.update([images()], forward=lambda model, batch: model[0](batch))


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

    @pytest.mark.parametrize("workers", [0, 2])
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
        G = sgs.scalings
        good, bad = images(), images()
        bad[3, 1, 2, 2] = math.nan
        flags = [m.training for m in model.modules()]
        state = torch.get_rng_state()
        with pytest.raises(ValueError, match=r"input of '0'.*NaN or infinite"):
            sgs.update([good, bad])
        assert all(torch.equal(value, G[name]) for name, value in sgs.scalings.items())
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


class TestStepping:
    def test_gradients_are_multiplied_before_the_optimizer_uses_them(self):
        model, optimizer, _ = build(scalings={"0": scaling_from_ratios(2, 4)}, dependence=None)
        reference = copy.deepcopy(model)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            x, y = images(), torch.randint(0, 5, (16,))
            for net, opt in ((model, optimizer), (reference, plain)):
                torch.manual_seed(1)
                opt.zero_grad()
                F.cross_entropy(net(x), y).backward()
                if opt is plain:
                    scale_gradients_(net, {"0": scaling_from_ratios(2, 4)})
                opt.step()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p, q)

    def test_ones_change_nothing_bit_for_bit(self):
        models = []
        for scaled in (False, True):
            torch.manual_seed(0)
            model = small_net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if scaled:
                SpatialGradientScaling(model, optimizer)
            train(model, optimizer)
            models.append(model)
        assert all(map(torch.equal, *(m.state_dict().values() for m in models)))

    def test_detach_and_context_manager(self):
        model, optimizer, sgs = build(scalings=scaling_from_ratios(5, 5), dependence=None)
        with sgs:
            assert len(optimizer._optimizer_step_pre_hooks) == 1
        assert not optimizer._optimizer_step_pre_hooks
        assert not model[0].weight._post_accumulate_grad_hooks
        assert "detached" in repr(sgs)
        model(images()).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
        assert torch.equal(model[0].weight.grad, gradient)
        sgs.detach()

    def test_attach_moves_to_another_optimizer(self):
        model, optimizer, sgs = build()
        other = torch.optim.Adam(model.parameters())
        sgs.attach(other)
        assert not optimizer._optimizer_step_pre_hooks
        assert len(other._optimizer_step_pre_hooks) == 1
        with pytest.raises(ValueError, match="does not hold the weights of 0, 3"):
            sgs.attach(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
        assert len(other._optimizer_step_pre_hooks) == 1

    @pytest.mark.parametrize(
        ("optimizer", "place"),
        [(torch.optim.SGD, "gradient"), (torch.optim.Adam, "update"), (torch.optim.Adagrad, "update")],
    )
    def test_auto(self, optimizer, place):
        model = small_net()
        sgs = SpatialGradientScaling(model, optimizer(model.parameters(), lr=0.1), apply="auto")
        assert sgs.apply == place
        assert f"apply={place!r}" in repr(sgs)

    def test_a_hook_that_never_fires_is_noticed_within_four_steps(self):
        model, _, _ = build()
        another = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, another, steps=3)
        with pytest.warns(NoEffectWarning, match=r"never ran.*sgs.attach"):
            train(model, another, steps=1)
        train(model, another, steps=8)  # once is enough: warnings are errors here

    def test_gradients_that_only_pile_up_are_noticed_too(self, monkeypatch):
        monkeypatch.setattr(step_hook, "PATIENCE", 5)
        model, _, _ = build()
        for _ in range(4):
            model(images()).sum().backward()
        with pytest.warns(NoEffectWarning, match="5 backward passes"):
            model(images()).sum().backward()

    def test_gradient_accumulation_is_not_mistaken_for_it(self):
        model, optimizer, _ = build()
        for step in range(30):
            model(images()).sum().backward()
            if step % 6 == 5:
                optimizer.step()

    def test_scaling_twice_is_refused(self):
        model, optimizer, first = build()
        with pytest.raises(ValueError, match=r"scale twice. Call detach\(\)"):
            SpatialGradientScaling(model, optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        first.detach()
        SpatialGradientScaling(model, optimizer).detach()
        first.attach(optimizer)
        first.attach(optimizer)
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="in several of the optimizers"):
            SpatialGradientScaling(model, [torch.optim.SGD(model.parameters(), lr=0.1), other])

    def test_attaching_after_the_first_convolution_was_frozen(self):
        model, optimizer, sgs = build(scalings=scaling_from_ratios(2, 2), dependence=None)
        model[0].requires_grad_(False)
        sgs.attach(optimizer)
        copy.deepcopy((model, optimizer, sgs))
        train(model, optimizer)

    def test_a_weight_that_is_pruned_later_is_reported(self):
        model, optimizer, _ = build()
        prune.l1_unstructured(model[0], "weight", amount=0.5)
        with pytest.warns(NoEffectWarning, match="0 were parametrized or pruned"):
            train(model, optimizer, steps=1)

    def test_moving_the_model_moves_the_scalings(self):
        model, optimizer, _ = build(scalings=scaling_from_ratios(2, 2), dependence=None)
        model.double()
        train_input = images().double()
        model(train_input).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight.grad, gradient * scaling_from_ratios(2, 2), atol=1e-6, rtol=1e-6)

    def test_the_values_live_in_fixed_memory(self):
        _, _, sgs = build()
        places = {name: values.data_ptr() for name, values in sgs._filters.items()}
        sgs.update(images())
        sgs.load_state_dict(sgs.state_dict())
        assert {name: values.data_ptr() for name, values in sgs._filters.items()} == places


class TestState:
    def test_round_trip_through_a_safe_file(self):
        _, _, sgs = build()
        sgs.update(images())
        file = io.BytesIO()
        torch.save(sgs.state_dict(), file)
        file.seek(0)
        _, _, fresh = build()
        fresh.load_state_dict(torch.load(file, weights_only=True))
        assert fresh.num_updates == 1
        assert all(torch.equal(value, fresh.scalings[name]) for name, value in sgs.scalings.items())

    def test_another_architecture_is_refused(self):
        _, _, sgs = build()
        before = sgs.scalings
        other = build(nn.Sequential(nn.Conv2d(3, 4, 5)))[2].state_dict()
        with pytest.raises(ValueError, match="another architecture: missing 3"):
            sgs.load_state_dict(other)
        wrong_kernel = {"scalings": {"0": torch.ones(5, 5), "3": torch.ones(1, 3)}, "num_updates": 3}
        with pytest.raises(ValueError, match=r"'0' has shape \(5, 5\)"):
            sgs.load_state_dict(wrong_kernel)
        with pytest.raises(ValueError, match="Not a state_dict"):
            sgs.load_state_dict({"model": 1})
        assert sgs.num_updates == 0
        assert all(torch.equal(value, before[name]) for name, value in sgs.scalings.items())

    def test_scalings_are_a_copy(self):
        _, _, sgs = build()
        sgs.scalings["0"].zero_()
        assert torch.equal(sgs.scalings["0"], torch.ones(3, 3))

    def test_set_scalings(self):
        _, _, sgs = build()
        sgs.set_scalings(scaling_from_ratios(2, 4))
        torch.testing.assert_close(sgs.scalings["0"], scaling_from_ratios(2, 4).float())
        assert torch.equal(sgs.scalings["3"], torch.ones(1, 3))
        with pytest.raises(ValueError, match="No convolution has a kernel of shape"):
            sgs.set_scalings(torch.ones(9, 9))
        with pytest.raises(KeyError, match=r"5 \(1×1 kernel"):
            sgs.set_scalings({"5": torch.ones(1, 1)})
        with pytest.raises(ValueError, match="finite"):
            sgs.set_scalings({"0": torch.full((3, 3), math.nan)})

    def test_an_honest_repr(self):
        _, _, sgs = build(k=3, warmup=2, every=7)
        assert repr(sgs) == (
            "SpatialGradientScaling(2 convolutions, 1 skipped, dependence='mutual-information', k=3, "
            "apply='gradient', warmup=2, every=7, updates=0, attached to SGD)"
        )
        assert "static" in repr(build(dependence=None)[2])


class TestSchedule:
    def test_the_authors_schedule(self):
        _, _, sgs = build(warmup=1, every=5)
        assert [epoch for epoch in range(17) if sgs.due(epoch)] == [1, 5, 10, 15]
        _, _, sgs = build(warmup=0, every=30)
        assert [epoch for epoch in range(61) if sgs.due(epoch)] == [0, 30, 60]

    def test_static_scalings_are_never_due(self):
        _, _, sgs = build(dependence=None)
        assert not any(sgs.due(epoch) for epoch in range(10))
        with pytest.raises(RuntimeError, match="static"):
            sgs.update(images())


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"k": 0}, "Invalid k: 0"),
            ({"k": -2}, "Invalid k: -2"),
            ({"dependence": "covariance"}, "covariance"),
            ({"warmup": -1}, "warmup=-1"),
            ({"every": 0}, "every=0"),
            ({"apply": "weights"}, "weights"),
            ({"bins": 0}, "bins"),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            build(**settings)

    def test_a_model_without_convolutions(self):
        with pytest.raises(ValueError, match="Sequential has no convolution to scale: it has no convolutions"):
            build(nn.Sequential(nn.Linear(2, 2)))
        with pytest.raises(ValueError, match="1 × 1×1 kernel"):
            build(nn.Sequential(nn.Conv2d(2, 2, 1)))

    def test_an_optimizer_of_another_model(self):
        with pytest.raises(ValueError, match="holds none of the model's convolution weights"):
            SpatialGradientScaling(small_net(), torch.optim.SGD(small_net().parameters(), lr=0.1))
        with pytest.raises(TypeError, match="got int"):
            SpatialGradientScaling(small_net(), 3)

    def test_an_optimizer_of_a_part_of_the_model(self):
        model = small_net()
        sgs = SpatialGradientScaling(model, torch.optim.SGD(model[3].parameters(), lr=0.1))
        assert list(sgs.scalings) == ["3"]
        assert sgs.skipped["0"] == "its weight is not in this optimizer"

    def test_an_empty_loader(self):
        _, _, sgs = build()
        with pytest.raises(ValueError, match="loader is empty"):
            sgs.update([])
        with pytest.raises(ValueError, match="loader is empty"):
            sgs.update(DataLoader(TensorDataset(images(4)), 8, drop_last=True))

    def test_fewer_batches_than_asked_for(self):
        _, _, sgs = build()
        with pytest.warns(UserWarning, match="had 1 batches, 3 were asked for"):
            sgs.update(DataLoader(TensorDataset(images(4)), 8), batches=3)
        assert sgs.num_updates == 1

    def test_a_loader_that_cannot_repeat_itself(self):
        class Restless:
            def __iter__(self):
                generator = torch.Generator()
                generator.seed()
                return iter([torch.rand(4, 3, 12, 12, generator=generator) for _ in range(2)])

        _, _, sgs = build()
        with pytest.warns(UserWarning, match="other batches on its second pass"):
            sgs.update(Restless())

    def test_targets_that_are_not_numbers_are_no_other_batches(self):
        x = images()
        build()[2].update([(x, torch.full((16,), math.nan)), (x, torch.ones(16, dtype=torch.complex64))])

    def test_errors_of_the_model_come_through(self):
        _, _, sgs = build()
        with pytest.raises(RuntimeError, match="channels"):
            sgs.update(torch.rand(2, 5, 12, 12))

    def test_scale_gradients_names_what_is_wrong(self):
        model = small_net()
        with pytest.raises(KeyError, match="no convolution 'conv9'; it has 0, 3, 5"):
            scale_gradients_(model, {"conv9": torch.ones(3, 3)})
        with pytest.raises(ValueError, match=r"'0' has shape \(2, 2\)"):
            scale_gradients_(model, {"0": torch.ones(2, 2)})
        scale_gradients_(model, {"0": torch.ones(3, 3)})  # no gradient yet: nothing to do
