"""Measuring through `SpatialGradientScaling.update`: right values, and nothing else changes."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import (
    Live,
    NoEffectWarning,
    SpatialGradientScaling,
    autocorrelation,
    normalized_mutual_information,
    scaling_from_dependence,
)
from support.common import same_matrices, train_
from support.scaling import build, images, measured, small_net, train


def model_of(forward, **parts):
    """A model of modules and buffers (tensors, or None) with a forward of its own."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                if part is None or isinstance(part, torch.Tensor):
                    self.register_buffer(name, part)
                else:
                    setattr(self, name, part)

    Model.forward = forward
    return Model()


def conv(out=4, **settings):
    return nn.Conv2d(3, out, 3, **settings)


def scaling_of(*maps, **settings):
    """By the pure functions, from all maps together or, if they differ in size, from all channels."""
    settings = {"padding": 1} | settings
    return scaling_from_dependence(normalized_mutual_information(torch.cat(maps), 3, **settings)).float()


class TestMeasuring:
    def test_the_scaling_is_that_of_the_pure_functions_on_the_layer_s_input(self, device):
        model, _, sgs = build(small_net().to(device), k=4)
        batches = [images().to(device), images().to(device)]
        G = sgs.update(batches)
        x = torch.cat(batches)
        with torch.no_grad():
            inner = model.eval()[:3](x)
        expected = {
            "0": normalized_mutual_information(x, 3, padding=1),
            "3": normalized_mutual_information(inner, (1, 3), padding=(0, 1)),
        }
        assert set(G) == set(sgs.dependence) == set(expected)
        for name, S in expected.items():
            torch.testing.assert_close(G[name], scaling_from_dependence(S, 4).float(), atol=1e-4, rtol=0)
            torch.testing.assert_close(sgs.dependence[name], S.nanmean(0), atol=1e-4, rtol=0)

    @pytest.mark.parametrize(
        "options",
        [{"bins": 12}, {"drop_near": True}, {"measure": "autocorrelation"}, {"max_channels": 2}, {"max_channels": 9}],
    )
    def test_options_reach_the_measure(self, options):
        x = images()
        maps = x[:, :: 2 if options.get("max_channels") == 2 else 1]
        own = {name: value for name, value in options.items() if name in ("bins", "drop_near")}
        S = (autocorrelation if "measure" in options else normalized_mutual_information)(maps, 3, padding=1, **own)
        _, _, sgs = build(**options)
        torch.testing.assert_close(sgs.update(x)["0"], scaling_from_dependence(S).float())
        torch.testing.assert_close(sgs.dependence["0"], S.mean(0))

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

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda maps, size, **_: torch.ones(2, 2), r"input of '0'.*\(2, 2\).*\(3, 3, 3\)"),
            (lambda maps, size, **_: torch.full((maps.shape[1], *size), 2.0), "scale '0': S must lie between 0 and 1"),
        ],
    )
    def test_a_function_of_the_user_that_is_wrong(self, function, message):
        _, _, sgs = build(measure=function)
        with pytest.raises(ValueError, match=f"Cannot .*{message}"):
            sgs.update(images())
        assert torch.equal(sgs.scalings["0"], torch.ones(3, 3))

    def test_a_function_in_single_precision_may_miss_1_by_rounding(self):
        G = measured(images(), measure=lambda maps, size, **_: torch.full((maps.shape[1], *size), 1 + 1e-6))
        assert torch.equal(G["0"], torch.ones(3, 3))

    def test_batches_of_every_kind(self):
        x, y = images(), torch.zeros(16)
        expected = measured(x)["0"]
        named = model_of(lambda self, pixel_values, labels=None: self.net(pixel_values), net=small_net())
        targets = [torch.full((16,), math.nan), torch.ones(16, dtype=torch.complex64), x]
        for data in ([(x, y)], (x, y), *([(x, target)] for target in targets)):
            assert torch.equal(measured(data)["0"], expected)
        assert torch.equal(build()[2].update(DataLoader(TensorDataset(x, y), 8), 2)["0"], expected)
        assert torch.equal(measured({"pixel_values": x, "labels": y}, named)["net.0"], expected)
        odd = [{"deep": [x]}]
        assert torch.equal(build()[2].update(odd, forward=lambda m, b: m(b["deep"][0]))["0"], expected)
        single = nn.Sequential(conv())
        assert torch.equal(measured([x[0]], single)["0"], measured(x[:1], single)["0"])

    def test_images_of_a_tensor_subclass(self):
        class Tagged(torch.Tensor):
            """As MONAI's MetaTensor."""

        x, (_, _, sgs) = images(), build()
        assert torch.equal(sgs.update(x.as_subclass(Tagged))["0"], measured(x)["0"])
        assert {type(S) for S in sgs.dependence.values()} == {torch.Tensor}

    def test_a_loader_is_read_once(self):
        class Once:
            reads = 0

            def __iter__(self):
                self.reads += 1
                return iter([images(), images()])

        loader = Once()
        build()[2].update(loader)
        assert loader.reads == 1

    def test_inputs_of_one_layer_are_pooled(self):
        x, y = images(), images() * 2

        def expect(model, expected, forward=None, name="a"):
            torch.testing.assert_close(build(model)[2].update([x], forward=forward)[name], expected)

        twice = model_of(lambda self, x: (self.a(y), self.a(x)), a=conv(padding=1))
        expect(twice, scaling_of(x, y))
        shared = nn.ModuleDict({name: conv(padding=1) for name in "ab"})
        shared["b"].weight = shared["a"].weight
        S = [normalized_mutual_information(maps, 3, padding=1) for maps in (x, y)]
        expect(shared, scaling_from_dependence(torch.cat(S)).float(), forward=lambda m, _: (m["a"](x), m["b"](y)))
        dilated = nn.ModuleDict({"a": conv(padding=1), "b": conv(padding=3, dilation=3)})
        dilated["b"].weight = dilated["a"].weight
        S = [normalized_mutual_information(x, 3, padding=d, dilation=d) for d in (1, 3)]
        expect(dilated, scaling_from_dependence(torch.cat(S)).float(), forward=lambda m, _: (m["a"](x), m["b"](x)))
        expect(small_net(), scaling_of(x), forward=lambda m, x: (m[0](x[:0]), m(x)), name="0")  # an empty batch

    def test_what_the_convolution_gets_is_measured(self):
        """By whatever keyword, and after the user's own hooks have changed it."""

        class Renamed(nn.Conv2d):
            def forward(self, x):
                return super().forward(x)

        x, model = images(), nn.Sequential(Renamed(3, 8, 3, padding=1))
        assert torch.equal(build(model)[2].update([x], forward=lambda m, b: m[0](x=b))["0"], scaling_of(x))
        model[0].register_forward_pre_hook(lambda _, args: (args[0] ** 3,))
        torch.testing.assert_close(measured(x, model)["0"], scaling_of(x**3))
        assert not torch.allclose(scaling_of(x), scaling_of(x**3), atol=1e-3)


class PaddingItself(nn.Conv2d):
    """As timm's Conv2dSame: pads in its own forward."""

    def forward(self, x):
        pads = []
        for size, side, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + side - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(x, pads))


def with_nan(x):
    x[3, 1, 2, 2] = math.nan
    return x


CANNOT = {
    "constant": (lambda: [torch.zeros(4, 3, 12, 12)], None, "0 have constant inputs and keep"),
    "nan": (lambda: [images(), with_nan(images())], None, "0, 3 had NaN or infinite inputs and keep"),
    "not called": (lambda: [images()], lambda m, x: m[3](torch.rand(4, 8, 9, 9)), "0 were not called"),
}


class TestWhatCannotBeMeasured:
    """A layer that cannot be measured keeps its scaling and its dependence, and is named once."""

    @pytest.mark.parametrize("kind", CANNOT)
    def test_it_keeps_what_it_has(self, kind):
        data, forward, message = CANNOT[kind]
        _, _, sgs = build()
        before, S = sgs.update(images()), sgs.dependence
        with pytest.warns(NoEffectWarning, match=f"Convolutions {message}"):
            after = sgs.update(data(), forward=forward)
        assert torch.equal(after["0"], before["0"])
        assert torch.equal(sgs.dependence["0"], S["0"])
        assert torch.equal(after["3"], before["3"]) == (kind == "nan")
        sgs.update(data(), forward=forward)  # warnings are errors here

    def test_the_layer_with_infinite_values_is_named(self):
        model, _, sgs = build()
        model[1].running_var.fill_(0)
        model[1].eps = 0
        with pytest.warns(NoEffectWarning, match="Convolutions 3 had NaN or infinite inputs"):
            G = sgs.update(images())
        assert not torch.equal(G["0"], torch.ones(3, 3))

    @pytest.mark.parametrize("live", [False, True])
    def test_maps_that_are_smaller_than_the_kernel(self, live):
        layers = [PaddingItself(3, 3, 5, stride=2) for _ in range(4)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        data = [(torch.rand(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)) for _ in range(3)]
        model, optimizer, sgs = build(model, live=Live(at=(1,), every=50, batches=1) if live else False)
        with pytest.warns(NoEffectWarning, match="Convolutions 2, 3 have inputs smaller than their kernel"):
            train_(model, optimizer, data) if live else sgs.update(data)
        assert sgs.num_updates == 1
        ones = [torch.equal(G, torch.ones(5, 5)) for G in sgs.scalings.values()]
        assert ones == [False, False, True, True]

    @pytest.mark.parametrize(
        ("model", "x", "settings"),
        [
            # Each pair of neighbours (11, 12, 22, 21) is as frequent as it is for independent pixels. An even kernel
            # has no centre, where S would be 1.
            (
                lambda: nn.Sequential(nn.Conv1d(1, 2, 2, dilation=2)),
                torch.tensor([1.0, 1.0, 2.0, 2.0] * 4 + [1.0]).repeat(2, 1, 1),
                {},
            ),
            (lambda: small_net()[:1], images(), {"measure": lambda m, size, **_: torch.zeros(m.shape[1], *size)}),
        ],
    )
    def test_exactly_independent_pixels_give_ones(self, model, x, settings):
        model, optimizer, sgs = build(model(), **settings)
        G = sgs.update(x)
        assert torch.equal(G["0"], torch.ones_like(G["0"]))
        model(x).sum().backward()
        optimizer.step()
        assert all(p.isfinite().all() for p in model.parameters())


class TestNothingElseChanges:
    def test_parameters_buffers_flags_hooks_random_states_and_gradients(self):
        model, optimizer, sgs = build()
        train(model, optimizer)
        model[1].eval()
        model[0].register_forward_hook(lambda *_: None)
        loader = DataLoader(TensorDataset(images(40), torch.zeros(40)), 8, shuffle=True)

        def everything():
            return {
                "values": [value.clone() for value in model.state_dict().values()],
                "gradients": [p.grad.clone() for p in model.parameters()],
                "flags": [module.training for module in model.modules()],
                "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
                "random": [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()],
                "modes": [torch.is_grad_enabled(), torch._dynamo.eval_frame._stance.stance],
            }

        before = str(everything())
        sgs.update(loader, batches=2)
        assert str(everything()) == before
        with pytest.raises(RuntimeError, match="channels"):  # the model's own error
            sgs.update([images(), torch.rand(2, 5, 12, 12)])
        assert str(everything()) == before
        assert sgs.num_updates == 1

    def test_buffers_and_layers_that_forward_changes(self):
        """As counters, caches and quantization-aware training before its first pass do."""

        def forward(self, x):
            self.calls += 1
            self.cache = x.mean((0, 2, 3))
            self.low.resize_(3).copy_(x.amin((0, 2, 3)))
            self.table.resize_(0)
            self.nothing = x.mean()
            self.gain = nn.Parameter(torch.ones(3))
            self.register_buffer("unheard", x.mean())
            if not hasattr(self, "head"):
                self.head = nn.Conv2d(4, 2, 3)
            self.last += 1
            self.norm.train()
            return self.head(self.conv(self.norm(x)))

        model = model_of(
            forward,
            calls=torch.zeros(()),
            grid=torch.zeros(3, 1).expand(3, 4),  # as those of torch.meshgrid
            cache=torch.zeros(1),
            low=torch.zeros(0),
            table=torch.zeros(7),
            nothing=None,
            norm=nn.BatchNorm2d(3),
            conv=conv(),
            last=torch.zeros(()),
        )
        model.register_parameter("gain", None)
        _, _, sgs = build(model)
        places = {name: buffer.data_ptr() for name, buffer in model.named_buffers() if name not in ("low", "table")}
        before, modules = copy.deepcopy(model.state_dict()), list(model.modules())
        sgs.update(images())
        assert same_matrices(model.state_dict(), before)
        assert all(model.get_buffer(name).data_ptr() == place for name, place in places.items())
        assert (model.nothing, model.gain, hasattr(model, "unheard")) == (None, None, False)
        assert list(model.modules()) == modules

    def test_a_backward_pass_that_is_still_to_come(self):
        def forward(self, x):
            self.calls += 1
            return self.norm(self.conv(x)) * self.gain  # backward needs the buffers as they were in forward

        x, gradients = images(), []
        for update in (False, True):
            torch.manual_seed(0)
            parts = {"conv": conv(), "norm": nn.BatchNorm2d(4).eval(), "gain": torch.full((1,), 3.0)}
            model, _, sgs = build(model_of(forward, **parts, calls=torch.zeros(())))
            loss = model(x).square().sum()
            if update:
                sgs.update(x)
            loss.backward()
            gradients.append(model.conv.weight.grad)
        assert torch.equal(*gradients)

    def test_the_weights_of_lazy_layers_are_not_initialized(self):
        model = nn.Sequential(conv(), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
        sgs = SpatialGradientScaling(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
        with pytest.raises(ValueError, match=r"1.weight, .*3.bias, .* are not initialized: run the model once"):
            sgs.update(images())
        assert isinstance(model[3], nn.LazyLinear)


class TestBadInput:
    def test_too_few_batches(self):
        _, _, sgs = build()
        for empty in ([], DataLoader(TensorDataset(images(4)), 8, drop_last=True)):
            with pytest.raises(ValueError, match="loader is empty"):
                sgs.update(empty)
        assert sgs.num_updates == 0
        with pytest.warns(UserWarning, match="only 1 of the requested 3 batches"):
            sgs.update(DataLoader(TensorDataset(images(4)), 8), batches=3)
        assert sgs.num_updates == 1

    @pytest.mark.parametrize("batches", [0, -1, 1.5, True])
    def test_an_invalid_number_of_batches(self, batches):
        with pytest.raises(ValueError, match=f"Invalid batches: {batches}; it must be an integer"):
            build()[2].update([images()], batches=batches)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (lambda x: [{"image": x, "label": 0}], r"Sequential.forward\(\) does not fit .* image, label .*forward="),
            (lambda x: (x * 255).to(torch.uint8), r"uint8 images.*\.float\(\) / 255"),
            (lambda x: [((x * 255).to(torch.uint8), 0)], "uint8 images"),
            (lambda x: {"input": (x * 255).to(torch.uint8)}, "uint8 images"),
            (lambda x: (x * 255).long(), "int64 images"),
            (lambda x: x.numpy(), r"NumPy arrays.*torch\.from_numpy"),
            (lambda x: [(x.numpy(), 0)], "NumPy arrays"),
            (lambda x: {"input": x.numpy()}, "NumPy arrays"),
            (lambda x: [["a.png", "b.png"]], "str"),  # the convolution's own error
        ],
    )
    def test_batches_that_do_not_fit_the_model_point_to_forward(self, data, message):
        with pytest.raises(TypeError, match=message):
            build()[2].update(data(images()))

    def test_models_that_convert_their_input_are_left_alone(self):
        model = model_of(lambda self, x: self.conv(torch.as_tensor(x).float()), conv=conv())
        for x in ((images() * 255).to(torch.uint8), images().numpy()):
            measured([x], model)
