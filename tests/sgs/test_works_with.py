"""Every way to train that plain PyTorch offers: scaling does what a hand-written step does."""

import copy
import inspect
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from spatialgrad import SpatialGradientScaling
from support.common import (
    BFLOAT16_ALIKE,
    TinyNet,
    batches,
    close_matrices,
    close_weights,
    dataset,
    images,
    loss_of,
    same_matrices,
    same_weights,
    scale_by_hand_,
    scale_update_by_hand_,
    some_scalings,
    step_by_hand_,
    train_,
    train_by_hand_,
)
from support.compiling import INDUCTOR

APPLY = ["gradient", "update"]

# Scaling the gradient of an adaptive optimizer has hardly any effect; that it is done right is tested all the same.
pytestmark = pytest.mark.filterwarnings("ignore:.* normalizes the gradient:spatialgrad.NoEffectWarning")

# Those of the paper, and the two that most people use today.
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 1e-2}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


def implementations(optimizer):
    parameters = inspect.signature(optimizer).parameters
    return [{}, *({name: True} for name in ("foreach", "fused") if name in parameters)]


VARIANTS = [
    pytest.param(optimizer, {**settings, **variant}, id="-".join([name, *variant]))
    for name, (optimizer, settings) in OPTIMIZERS.items()
    for variant in implementations(optimizer)
]


def scaled(model=None, optimizer=torch.optim.SGD, apply="gradient", **settings):
    """A model under training with static scalings, and its twin that is to be scaled by hand."""
    model = model or TinyNet()
    twin = copy.deepcopy(model)
    settings = settings or {"lr": 0.1, "momentum": 0.9}
    mine, other = optimizer(model.parameters(), **settings), optimizer(twin.parameters(), **settings)
    SpatialGradientScaling(model, mine, measure=None, scalings=some_scalings(), apply=apply)
    return model, mine, twin, other


@pytest.mark.parametrize("apply", APPLY)
@pytest.mark.parametrize(("optimizer", "settings"), VARIANTS)
def test_optimizers(optimizer, settings, apply):
    model, mine, twin, other = scaled(optimizer=optimizer, apply=apply, **settings)
    unscaled = copy.deepcopy(twin)
    train_(model, mine, batches())
    train_by_hand_(twin, other, batches(), some_scalings(), apply)
    train_by_hand_(unscaled, optimizer(unscaled.parameters(), **settings), batches(), {}, apply)
    assert close_weights(model, twin)
    # Adaptive optimizers divide factors on the gradient out, so the weights alone would not show a wrong scaling.
    gradients, by_hand, plain = ({n: p.grad for n, p in m.named_parameters()} for m in (model, twin, unscaled))
    assert close_matrices(gradients, by_hand)
    if apply == "gradient":
        assert not close_matrices(gradients, plain)
    else:
        assert not close_weights(model, unscaled)


@pytest.mark.parametrize("apply", APPLY)
def test_gradient_accumulation(apply):
    model, mine, twin, other = scaled(apply=apply)
    for step in range(3):
        for micro in range(4):
            batch = images(seed=10 * step + micro)
            for net in (model, twin):
                (loss_of(net, batch) / 4).backward()
        mine.step()
        mine.zero_grad()
        step_by_hand_(twin, other, some_scalings(), apply)
        other.zero_grad()
    assert close_weights(model, twin)


@pytest.mark.parametrize("apply", APPLY)
@pytest.mark.parametrize(("clip_", "limit"), [(nn.utils.clip_grad_norm_, 1e-2), (nn.utils.clip_grad_value_, 1e-4)])
def test_clipping_comes_before_scaling(clip_, limit, apply):
    model, mine, twin, other = scaled(apply=apply)
    for batch in batches():
        for net, optimizer in ((model, mine), (twin, other)):
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            before = net.first.weight.grad.clone()
            clip_(net.parameters(), limit)
            assert not torch.equal(net.first.weight.grad, before)
        mine.step()
        step_by_hand_(twin, other, some_scalings(), apply)
    assert close_weights(model, twin)


class TestGradScaler:
    """Scaled losses, unscaled gradients, and a step that is skipped because a gradient is infinite."""

    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("fused", [False, True])
    @pytest.mark.parametrize("clipping", [False, True])
    def test_training_with_a_skipped_step(self, apply, fused, clipping):
        model, mine, twin, other = scaled(optimizer=torch.optim.Adam, lr=0.01, fused=fused, apply=apply)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scale = 1024.0
        for step, batch in enumerate(batches(5)):
            broken = step == 2
            factor = math.inf if broken else 1.0

            mine.zero_grad()
            scaler.scale(loss_of(model, batch) * factor).backward()
            if clipping:
                scaler.unscale_(mine)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            weights = copy.deepcopy(model.state_dict())
            scaler.step(mine)
            scaler.update()

            if broken:
                assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
                assert scaler.get_scale() == 512.0
                scale = 512.0
                continue
            other.zero_grad()
            (loss_of(twin, batch) * scale).backward()
            for parameter in twin.parameters():
                parameter.grad /= scale
            if clipping:
                nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            step_by_hand_(twin, other, some_scalings(), apply)
        # fused kernels unscale after the multiplication; powers of two are exact in any order
        assert close_weights(model, twin)


@pytest.mark.parametrize("apply", APPLY)
def test_bfloat16_autocast(apply):
    model, mine, twin, other = scaled(apply=apply)
    for batch in batches():
        for net, optimizer in ((model, mine), (twin, other)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits = net(batch[0])
                assert logits.dtype == torch.bfloat16
                loss = nn.functional.cross_entropy(logits, batch[1])
            loss.backward()
        mine.step()
        step_by_hand_(twin, other, some_scalings(), apply)
    assert close_weights(model, twin, BFLOAT16_ALIKE)


def test_measuring_under_bfloat16_autocast():
    model = TinyNet()
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
    exact = sgs.update(batches(2))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = sgs.update(batches(2))
    assert torch.equal(rounded["first"], exact["first"])  # the images themselves are not rounded
    assert not torch.equal(rounded["last"], exact["last"])
    for name, G in rounded.items():
        torch.testing.assert_close(G, exact[name], atol=0.1, rtol=0)
        torch.testing.assert_close(G.mean(), torch.tensor(1.0))


def test_bfloat16_weights():
    model, mine, twin, other = scaled(TinyNet().bfloat16())
    data = [(x.bfloat16(), y) for x, y in batches()]
    for batch in data:
        for net, optimizer in ((model, mine), (twin, other)):
            optimizer.zero_grad()
            loss_of(net, batch).backward()
        mine.step()
        for name, G in some_scalings().items():  # multiplied in float32, then rounded once
            gradient = twin.get_parameter(f"{name}.weight").grad
            gradient.copy_((gradient.float() * G).bfloat16())
        other.step()
    assert close_weights(model, twin, BFLOAT16_ALIKE)


@pytest.mark.parametrize("apply", APPLY)
@pytest.mark.parametrize("when", ["before", "after"])
def test_channels_last(apply, when):
    model = TinyNet()
    if when == "before":
        model = model.to(memory_format=torch.channels_last)
    model, mine, twin, other = scaled(model, apply=apply)
    model, twin = (net.to(memory_format=torch.channels_last) for net in (model, twin))
    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches()]
    train_(model, mine, data)
    assert model.first.weight.is_contiguous(memory_format=torch.channels_last)
    train_by_hand_(twin, other, data, some_scalings(), apply)
    assert close_weights(model, twin)


def test_measuring_channels_last():
    model = TinyNet()
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plain = sgs.update(batches(2))
    model.to(memory_format=torch.channels_last)
    again = sgs.update([(x.to(memory_format=torch.channels_last), y) for x, y in batches(2)])
    for name, G in again.items():
        torch.testing.assert_close(G, plain[name], atol=1e-3, rtol=0)
    assert torch.equal(again["first"], plain["first"])


class TestClosures:
    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("by_keyword", [False, True])
    def test_step_with_a_closure(self, apply, by_keyword):
        model, mine, twin, other = scaled(apply=apply)
        losses = []
        for batch in batches():

            def closure(batch=batch):
                mine.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            losses.append(mine.step(closure=closure) if by_keyword else mine.step(closure))
        train_by_hand_(twin, other, batches(), some_scalings(), apply)
        assert close_weights(model, twin)
        assert all(loss.requires_grad for loss in losses)

    def test_lbfgs_sees_scaled_gradients_in_every_evaluation(self):
        model, mine, twin, other = scaled(
            optimizer=torch.optim.LBFGS, lr=0.5, max_iter=6, line_search_fn="strong_wolfe"
        )
        evaluations = {"mine": 0, "other": 0}

        def closure(net, optimizer, who, by_hand, batch):
            optimizer.zero_grad()
            loss = loss_of(net, batch)
            loss.backward()
            if by_hand:
                scale_by_hand_(net, some_scalings())
            evaluations[who] += 1
            return loss

        for batch in batches(2):
            mine.step(lambda batch=batch: closure(model, mine, "mine", False, batch))
            other.step(lambda batch=batch: closure(twin, other, "other", True, batch))
        assert close_weights(model, twin)
        assert evaluations["mine"] == evaluations["other"] > 6

    def test_lbfgs_with_scaled_updates(self):
        model, mine, twin, other = scaled(optimizer=torch.optim.LBFGS, lr=0.5, max_iter=4, apply="update")

        def closure(net, optimizer):
            optimizer.zero_grad()
            loss = loss_of(net, images())
            loss.backward()
            return loss

        old = copy.deepcopy(twin)
        other.step(lambda: closure(twin, other))
        scale_update_by_hand_(twin, old, some_scalings())
        mine.step(lambda: closure(model, mine))
        assert close_weights(model, twin)


class TestSeveralOptimizers:
    def split(self, model, first=torch.optim.SGD):
        late = [*model.last.parameters(), *model.head.parameters()]
        early = [p for p in model.parameters() if not any(p is q for q in late)]
        return [first(early, lr=0.1), torch.optim.Adam(late, lr=0.01)]

    def test_each_convolution_is_scaled_when_its_optimizer_steps(self):
        model = TinyNet()
        twin = copy.deepcopy(model)
        mine, other = self.split(model), self.split(twin)
        sgs = SpatialGradientScaling(model, mine, measure=None, scalings=some_scalings(), apply="auto")
        assert sgs.apply == "auto"  # SGD: gradient, Adam: update
        assert "attached to SGD and Adam" in repr(sgs)
        G = some_scalings()
        late = {"last": G.pop("last")}
        for step, batch in enumerate(batches()):
            for net, optimizers in ((model, mine), (twin, other)):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss_of(net, batch).backward()
            if step % 2 == 0:  # they need not step equally often
                mine[0].step()
                step_by_hand_(twin, other[0], G, "gradient")
            mine[1].step()
            step_by_hand_(twin, other[1], late, "update")
        assert close_weights(model, twin)
        sgs.detach()
        assert not any(o._optimizer_step_pre_hooks or o._optimizer_step_post_hooks for o in mine)

    def test_an_optimizer_without_convolutions_is_left_alone(self):
        model = TinyNet()
        body = [p for name, p in model.named_parameters() if not name.startswith("head")]
        optimizers = [torch.optim.SGD(body, lr=0.1), torch.optim.Adam(model.head.parameters())]
        sgs = SpatialGradientScaling(model, optimizers, apply="auto")
        assert sgs.apply == "gradient"
        assert not optimizers[1]._optimizer_step_pre_hooks
        assert set(sgs.scalings) == set(some_scalings())

    def test_no_optimizer_at_all(self):
        with pytest.raises(ValueError, match="list is empty"):
            SpatialGradientScaling(TinyNet(), [])


class TestCompile:
    """Compiled without code generation here; the generated code is tried by the slow test."""

    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
    def test_model(self, apply, backend):
        torch.compiler.reset()
        model, mine, twin, other = scaled(apply=apply)
        compiled = torch.compile(model, backend=backend)
        train_(compiled, mine, batches())
        train_by_hand_(twin, other, batches(), some_scalings(), apply)
        self.assert_close(model, twin, exact=backend == "aot_eager")

    @pytest.mark.parametrize("apply", APPLY)
    @pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
    def test_step(self, apply, backend, optimizer):
        torch.compiler.reset()
        model, mine, twin, other = scaled(optimizer=optimizer, lr=0.01, apply=apply)
        step = torch.compile(mine.step, backend=backend)
        for batch in batches():
            mine.zero_grad()
            loss_of(model, batch).backward()
            step()
        train_by_hand_(twin, other, batches(), some_scalings(), apply)
        self.assert_close(model, twin, exact=False)

    def test_new_scalings_reach_a_step_that_is_compiled_already(self):
        torch.compiler.reset()
        model = TinyNet()
        twin = copy.deepcopy(model)
        mine, other = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, twin))
        sgs = SpatialGradientScaling(model, mine, measure=None)
        step = torch.compile(mine.step, backend="aot_eager")
        for round_, G in enumerate([{}, some_scalings(), {name: 2 * g for name, g in some_scalings().items()}, {}]):
            if round_ == 3:
                sgs.detach()
            elif G:
                sgs.set_scalings(G)
            for batch in batches(2):
                mine.zero_grad()
                loss_of(model, batch).backward()
                step()
            train_by_hand_(twin, other, batches(2), G)
            self.assert_close(model, twin, exact=False)

    @staticmethod
    def assert_close(model, twin, *, exact):
        if exact:
            assert close_weights(model, twin)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


class TestCheckpoints:
    def train(self, epochs, checkpoint=None, apply="gradient"):
        """Train from a checkpoint or from the start, with updates before epochs 1 and 3, and write a checkpoint."""
        model = TinyNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sgs = SpatialGradientScaling(model, optimizer, every=3, apply=apply)
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(dataset(24), 8, shuffle=True, generator=generator)
        start = 0
        if checkpoint is not None:
            state = torch.load(io.BytesIO(checkpoint), weights_only=True)
            start = state["epoch"]
            generator.set_state(state["generator"])
            for what in (model, optimizer, sgs):
                what.load_state_dict(state[type(what).__name__])
        for epoch in range(start, epochs):
            if sgs.due(epoch):
                sgs.update(loader, batches=2)
            train_(model, optimizer, loader)
        file = io.BytesIO()
        parts = {type(what).__name__: what.state_dict() for what in (model, optimizer, sgs)}
        torch.save({**parts, "epoch": epochs, "generator": generator.get_state()}, file)
        return model, sgs, file.getvalue()

    @pytest.mark.bits
    @pytest.mark.parametrize("apply", APPLY)
    def test_resume_is_bit_exact(self, apply):
        torch.manual_seed(0)
        whole, sgs, _ = self.train(5, apply=apply)
        torch.manual_seed(0)
        _, _, checkpoint = self.train(2, apply=apply)
        torch.manual_seed(99)  # everything that matters comes from the checkpoint
        resumed, resumed_sgs, _ = self.train(5, checkpoint, apply=apply)
        assert same_weights(whole, resumed)
        assert resumed_sgs.num_updates == sgs.num_updates == 2
        assert same_matrices(sgs.scalings, resumed_sgs.scalings)
        assert same_matrices(sgs.dependence, resumed_sgs.dependence)
        assert not torch.equal(sgs.scalings["first"], torch.ones(3, 3))


class TestCopies:
    def test_a_deep_copy_of_the_model_is_not_scaled_and_does_not_disturb(self):
        model, mine, twin, other = scaled()
        clone = copy.deepcopy(model)
        plain = copy.deepcopy(twin)
        clone_optimizer, plain_optimizer = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (clone, plain))
        for batch in batches():
            train_(model, mine, [batch])
            train_(clone, clone_optimizer, [batch])
        train_by_hand_(twin, other, batches(), some_scalings())
        train_by_hand_(plain, plain_optimizer, batches(), {})
        assert close_weights(model, twin)
        assert close_weights(clone, plain)

    def test_a_moving_average_of_the_weights(self):
        model, mine, twin, other = scaled()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        by_hand = None
        for batch in batches():
            train_(model, mine, [batch])
            average.update_parameters(model)
            train_by_hand_(twin, other, [batch], some_scalings())
            new = [p.detach().clone() for p in twin.parameters()]
            by_hand = new if by_hand is None else [old.lerp(p, 0.5) for old, p in zip(by_hand, new, strict=True)]
        for p, q in zip(average.module.parameters(), by_hand, strict=True):
            torch.testing.assert_close(p, q)

    def test_a_model_under_scaling_can_be_pickled(self):
        model, *_ = scaled()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert same_weights(torch.load(file, weights_only=False), model)

    @pytest.mark.parametrize("how", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))])
    def test_a_copy_of_everything_is_scaled_as_the_original(self, how):
        model, _, twin, other = scaled()
        mine = torch.optim.SGD(model.parameters(), lr=0.1)
        sgs = SpatialGradientScaling(model, mine, measure=None, scalings=some_scalings())
        sgs.detach()
        assert "detached" in repr(how(sgs))
        mine = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sgs.attach(mine)
        clone, clone_optimizer, clone_sgs = how((model, mine, sgs))
        train_(clone, clone_optimizer, batches())
        train_by_hand_(twin, other, batches(), some_scalings())
        assert close_weights(clone, twin)
        clone_sgs.detach()
        assert len(mine._optimizer_step_pre_hooks) == 1

    def test_moving_on_to_another_optimizer(self):
        model, twin = TinyNet(), TinyNet()
        twin.load_state_dict(model.state_dict())
        first, other = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, twin))
        sgs = SpatialGradientScaling(model, first, measure=None, scalings=some_scalings())
        mine = torch.optim.SGD(model.parameters(), lr=0.1)
        mine.load_state_dict(first.state_dict())
        sgs.attach(mine)
        train_(model, mine, batches())
        train_by_hand_(twin, other, batches(), some_scalings())
        assert close_weights(model, twin)
