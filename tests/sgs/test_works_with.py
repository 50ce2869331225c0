"""Every way to train that plain PyTorch offers: scaling does what a hand-written training does."""

import copy
import gc
import inspect
import io
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from spatialgrad import Live, SpatialGradientScaling
from support.common import (
    BFLOAT16_ALIKE,
    MATRICES_ALIKE,
    SCALED,
    STEPS_ALIKE,
    UPDATES_ALIKE,
    TinyNet,
    batches,
    close_matrices,
    close_weights,
    loss_of,
    same_weights,
    scale_by_hand_,
    scale_update_by_hand_,
    some_scalings,
    step_by_hand_,
    train_,
    train_by_hand_,
)
from support.compiling import INDUCTOR
from support.live import COUNTS, RANGES, SCHEDULE, hooks_on, recording, scalings_by_hand, some_batches

# Scaling the gradient of an adaptive optimizer has hardly any effect; that it is done right is tested all the same.
pytestmark = pytest.mark.filterwarnings("ignore:.* normalizes the gradient:spatialgrad.NoEffectWarning")


def hand_scaled(kind):
    """A subclass of an optimizer that scales by hand whenever it steps, and measures by hand if it is live."""

    class HandScaled(kind):
        def __init__(self, net, names=SCALED, live=False, apply="gradient", scalings=None, **settings):
            super().__init__(net.parameters(), **settings)
            self.net, self.apply, self.scalings = net, apply, scalings or {}
            self.number, self.seen = 0, ({}, {})
            for name in names if live else ():
                net.get_submodule(name).register_forward_pre_hook(partial(self.record, name))

        def record(self, name, module, args):
            if self.number in RANGES + COUNTS and torch.is_grad_enabled() and module.weight.requires_grad:
                self.seen[self.number in COUNTS].setdefault(name, []).append(args[0].detach().clone())

        def step(self, closure=None):
            def scaled():
                loss = closure()
                self.scale_gradients()
                return loss

            if closure is None:
                self.scale_gradients()
            old = copy.deepcopy(self.net)
            loss = super().step(closure and scaled)
            if self.apply != "gradient":
                scale_update_by_hand_(self.net, old, self.scalings, self)
            if self.number == COUNTS[-1] and self.seen[1]:
                self.scalings = scalings_by_hand(self.net, *self.seen)
            self.number += 1
            return loss

        def scale_gradients(self):
            if self.apply != "update":
                scale_by_hand_(self.net, self.scalings)

    return HandScaled


# Ways to train: each calls what everybody calls, and scaling comes with the optimizer


def accumulating(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        for part in (slice(0, 5), slice(5, None)):  # of different size
            loss_of(model, (x[part], y[part])).backward()
        optimizer.step()


def with_closure(model, optimizer, data, by_keyword=False):
    for batch in data:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, (batch[0].to(model.first.weight), batch[1]))
            loss.backward()
            return loss

        loss = optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        assert loss.requires_grad


def clipping(model, optimizer, data, clip_=nn.utils.clip_grad_norm_, limit=1e-2):
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        before = model.first.weight.grad.clone()
        clip_(model.parameters(), limit)
        assert not torch.equal(model.first.weight.grad, before)
        optimizer.step()


def with_grad_scaler(model, optimizer, data, clip=False):
    """The gradients of one step are infinite: it is skipped, or a fused optimizer steps and changes nothing."""
    scaler = torch.amp.GradScaler(model.first.weight.device.type, init_scale=1024.0)
    for step, batch in enumerate(data):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch) * (math.inf if step == 1 else 1.0)).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        before = copy.deepcopy(model)
        scaler.step(optimizer)
        scaler.update()
        assert same_weights(model, before) == (step == 1)
    assert scaler.get_scale() == 512.0


def under_autocast(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
        assert logits.dtype == torch.bfloat16
        loss.backward()
        optimizer.step()


def in_bfloat16(model, optimizer, data):
    train_(model, optimizer, ((x.bfloat16(), y) for x, y in data))


def channels_last(model, optimizer, data):
    model.to(memory_format=torch.channels_last)  # after the scaling was attached
    train_(model, optimizer, ((x.to(memory_format=torch.channels_last), y) for x, y in data))
    assert model.first.weight.is_contiguous(memory_format=torch.channels_last)


def compiled(model, optimizer, data, what, backend="aot_eager"):
    gc.collect()  # updates of other tests that are still under way
    torch.compiler.reset()
    compile_ = partial(torch.compile, backend=backend)

    def one_step(net, batch, step):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        step()

    train = compile_(one_step) if what == "everything" else one_step
    net = model if what in ("step", "everything") else compile_(model)
    step = compile_(optimizer.step) if "step" in what else optimizer.step
    for batch in data:
        train(net, batch, step)
    assert hooks_on(model) == 0
    assert torch._dynamo.eval_frame._stance.stance == "default"


class Checkpointed(TinyNet):
    """Recomputes activations in the backward pass, which must not count twice."""

    reentrant = False

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        # Reentrant checkpoints need an input that requires a gradient.
        return checkpoint(super().forward, x.clone().requires_grad_(), use_reentrant=self.reentrant)


class ReentrantCheckpointed(Checkpointed):
    reentrant = True


@dataclass(frozen=True, kw_only=True)
class Way:
    train: Callable = train_
    by_hand: Callable | None = None
    """If the twin is trained in another way."""
    model: Callable = TinyNet
    optimizer: type = torch.optim.SGD
    settings: dict = field(default_factory=lambda: {"lr": 0.1, "momentum": 0.9})
    tolerance: dict | None = None


ADAM = {"optimizer": torch.optim.Adam}
WAYS = {
    "plain": Way(),
    "accumulation": Way(train=accumulating),
    "closure": Way(train=with_closure),
    "closure-by-keyword": Way(train=partial(with_closure, by_keyword=True)),
    # In float64: it divides by differences of gradients, which magnifies rounding.
    "lbfgs": Way(
        train=with_closure,
        model=lambda: TinyNet().double(),
        optimizer=torch.optim.LBFGS,
        settings={"lr": 0.05, "max_iter": 4},
    ),
    "lbfgs-line-search": Way(
        train=with_closure,
        model=lambda: TinyNet().double(),
        optimizer=torch.optim.LBFGS,
        settings={"lr": 0.1, "max_iter": 3, "line_search_fn": "strong_wolfe"},
    ),
    "clipped-norm": Way(train=clipping),
    "clipped-values": Way(train=partial(clipping, clip_=nn.utils.clip_grad_value_, limit=1e-4)),
    "grad-scaler": Way(train=with_grad_scaler, **ADAM, settings={"lr": 0.01}),
    "grad-scaler-clipped": Way(train=partial(with_grad_scaler, clip=True), **ADAM, settings={"lr": 0.01}),
    "grad-scaler-fused": Way(train=with_grad_scaler, **ADAM, settings={"lr": 0.01, "fused": True}),
    "autocast": Way(train=under_autocast, tolerance=BFLOAT16_ALIKE),
    "bfloat16": Way(train=in_bfloat16, model=lambda: TinyNet().bfloat16(), tolerance=BFLOAT16_ALIKE),
    "channels-last": Way(model=lambda: TinyNet().to(memory_format=torch.channels_last)),
    "channels-last-later": Way(train=channels_last),
    "checkpointing": Way(model=Checkpointed),
    "reentrant-checkpointing": Way(model=ReentrantCheckpointed),
    **{
        f"compiled-{what}": Way(train=partial(compiled, what=what), by_hand=train_)
        for what in ("model", "step", "model and step", "everything")
    },
}
SWEPT = ("compiled-model", "compiled-step", "compiled-everything")
"""Further ways to compile, which take seconds each."""
COLUMNS = {
    "gradient": {"measure": None, "scalings": some_scalings(), "apply": "gradient"},
    "update": {"measure": None, "scalings": some_scalings(), "apply": "update"},
    "updated": {"apply": "gradient"},
    "live": {"apply": "gradient", "live": SCHEDULE},
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow if way in SWEPT else ()) for way in WAYS])
def test_works_with(way, column, device):
    check(WAYS[way], column, device)


@pytest.mark.parametrize("backend", [INDUCTOR])
@pytest.mark.parametrize("column", COLUMNS)
def test_generated_code(column, backend, device):
    check(Way(train=partial(compiled, what="model and step", backend=backend), by_hand=train_), column, device)


def check(way, column, device):
    settings, data = COLUMNS[column], [(x.to(device), y.to(device)) for x, y in some_batches()]
    model = way.model().to(device)
    twin = TinyNet().to(model.first.weight)
    twin.load_state_dict(model.state_dict())
    mine = way.optimizer(model.parameters(), **way.settings)
    sgs = SpatialGradientScaling(model, mine, **settings)
    other = hand_scaled(way.optimizer)(
        twin, live=column == "live", apply=settings["apply"], scalings=settings.get("scalings"), **way.settings
    )

    def update():
        sgs.update([(x.to(model.first.weight.dtype), y) for x, y in data[:2]])

    def update_by_hand():
        seen = {}
        with recording(twin, seen), torch.no_grad():
            for x, _ in data[:2]:
                twin(x.to(twin.first.weight.dtype))
        other.scalings = scalings_by_hand(twin, seen, seen)

    def batches_with(action):
        for number, batch in enumerate(data):
            if number == 3 and column == "updated":
                action()
            yield batch

    way.train(model, mine, batches_with(update))
    (way.by_hand or way.train)(twin, other, batches_with(update_by_hand))
    measured = column in ("updated", "live")
    assert sgs.num_updates == measured
    assert close_matrices({name: G.cpu().float() for name, G in sgs.scalings.items()}, other.scalings, MATRICES_ALIKE)
    assert all((G - 1).abs().max() > 0.01 for G in sgs.scalings.values())
    assert close_weights(model, twin, way.tolerance or (UPDATES_ALIKE if measured else STEPS_ALIKE))


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
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.5}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


def scaled(model=None, optimizer=torch.optim.SGD, apply="gradient", **settings):
    """A model under training with static scalings, and its twin that is to be scaled by hand."""
    model = model or TinyNet()
    twin = copy.deepcopy(model)
    settings = settings or {"lr": 0.1, "momentum": 0.9}
    mine = optimizer(model.parameters(), **settings)
    sgs = SpatialGradientScaling(model, mine, measure=None, scalings=some_scalings(), apply=apply)
    return model, mine, sgs, twin, hand_scaled(optimizer)(twin, apply=apply, scalings=some_scalings(), **settings)


@pytest.mark.parametrize("apply", ["gradient", "update", "both"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, apply):
    optimizer, settings = OPTIMIZERS[name]
    accepted = inspect.signature(optimizer).parameters
    for variant in [{}, *({way: True} for way in ("foreach", "fused") if way in accepted)]:
        model, mine, _, twin, other = scaled(optimizer=optimizer, apply=apply, **settings, **variant)
        unscaled = copy.deepcopy(twin)
        train_(model, mine, batches())
        train_(twin, other, batches())
        train_(unscaled, optimizer(unscaled.parameters(), **settings, **variant), batches())
        assert close_weights(model, twin), variant
        # Adaptive optimizers divide factors on the gradient out, so the weights alone would not show a wrong scaling.
        gradients, by_hand, plain = ({n: p.grad for n, p in m.named_parameters()} for m in (model, twin, unscaled))
        assert close_matrices(gradients, by_hand)
        assert not (close_matrices(gradients, plain) if apply == "gradient" else close_weights(model, unscaled))


class TestSeveralOptimizers:
    def split(self, model, kind=torch.optim.SGD, lr=0.1):
        late = [*model.last.parameters(), *model.head.parameters()]
        early = [p for p in model.parameters() if not any(p is q for q in late)]
        return [torch.optim.SGD(early, lr=0.1), kind(late, lr=lr)]

    def test_each_convolution_is_scaled_when_its_optimizer_steps(self):
        model = TinyNet()
        twin = copy.deepcopy(model)
        mine, other = (self.split(net, torch.optim.Adam, 0.01) for net in (model, twin))
        sgs = SpatialGradientScaling(model, mine, measure=None, scalings=some_scalings())
        assert sgs.apply == "auto"  # SGD: gradient, Adam: update
        assert "attached to SGD and Adam" in repr(sgs)
        G = some_scalings()
        late = {"last": G.pop("last")}
        for step, batch in enumerate(batches()):
            for net in (model, twin):
                net.zero_grad()
                loss_of(net, batch).backward()
            if step % 2 == 0:  # they need not step equally often
                mine[0].step()
                step_by_hand_(twin, other[0], G, "gradient")
            mine[1].step()
            step_by_hand_(twin, other[1], late, "update")
        assert close_weights(model, twin)
        sgs.detach()
        assert not any(o._optimizer_step_pre_hooks or o._optimizer_step_post_hooks for o in mine)

    def test_each_counts_its_own_live_steps_and_the_compiler_is_left_as_it_was(self):
        model = TinyNet()
        first, second = optimizers = self.split(model)
        sgs = SpatialGradientScaling(model, optimizers, live=SCHEDULE)
        net, updates = torch.compile(model, backend="aot_eager"), []
        with torch.compiler.set_stance("eager_on_recompile"):
            for step, batch in enumerate(batches(12)):
                model.zero_grad()
                train_(net, first, [batch])
                if step % 2:
                    second.step()
                updates.append(sgs.num_updates)
            # The first one updates after its step 6, the second after its step 6, which is the twelfth of the loop.
            assert updates == [0] * 5 + [1] * 6 + [3]
            sgs.detach()
            assert torch._dynamo.eval_frame._stance.stance == "eager_on_recompile"
        assert all((G - 1).abs().max() > 0.01 for G in sgs.scalings.values())

    def test_an_optimizer_without_convolutions_is_left_alone(self):
        model = TinyNet()
        body = [p for name, p in model.named_parameters() if not name.startswith("head")]
        optimizers = [torch.optim.SGD(body, lr=0.1), torch.optim.Adam(model.head.parameters())]
        sgs = SpatialGradientScaling(model, optimizers)
        assert sgs.apply == "gradient"
        assert not optimizers[1]._optimizer_step_pre_hooks
        assert set(sgs.scalings) == set(SCALED)


class TestGan:
    """Two networks, each with its optimizer, live on both."""

    @pytest.mark.parametrize("loop", ["frozen", "detached"])
    def test_a_generator_and_a_discriminator(self, loop):
        generator = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1))
        judge = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
        pair = nn.ModuleDict({"g": generator, "d": judge})
        twins, settings, names = copy.deepcopy(pair), {"lr": 0.1, "momentum": 0.5}, {"g": ["0", "2"], "d": ["0"]}
        optimizers = {name: torch.optim.SGD(net.parameters(), **settings) for name, net in pair.items()}
        sgs = SpatialGradientScaling(pair, list(optimizers.values()), live=Live(at=(RANGES[0],), every=100, batches=2))
        kind = hand_scaled(torch.optim.SGD)
        by_hand = {name: kind(net, names[name], live=True, **settings) for name, net in twins.items()}
        train = {"frozen": self.train_frozen, "detached": self.train_detached}[loop]
        train(pair, optimizers)
        train(twins, by_hand)
        scalings = {f"{name}.{layer}": G for name, each in by_hand.items() for layer, G in each.scalings.items()}
        assert sgs.num_updates == 2
        assert close_matrices(sgs.scalings, scalings, MATRICES_ALIKE)
        assert close_weights(pair, twins, UPDATES_ALIKE)

    @staticmethod
    def train_frozen(nets, optimizers):
        """The discriminator steps twice as often and is frozen meanwhile; its fakes are made without gradients."""
        noise = torch.Generator().manual_seed(1)
        for step, (x, _) in enumerate(batches(18)):
            z = torch.randn(x.shape, generator=noise)
            nets["d"].requires_grad_(True)
            optimizers["d"].zero_grad()
            with torch.no_grad():
                fake = nets["g"](z)
            (nets["d"](fake).mean() - nets["d"](x).mean()).backward()
            optimizers["d"].step()
            if step % 2:
                nets["d"].requires_grad_(False)
                optimizers["g"].zero_grad()
                (-nets["d"](nets["g"](z)).mean()).backward()
                optimizers["g"].step()

    @staticmethod
    def train_detached(nets, optimizers):
        """One pass of the generator serves both; its step passes through the discriminator, whose next step counts."""
        noise = torch.Generator().manual_seed(1)
        for x, _ in batches(9):
            optimizers["d"].zero_grad()
            fake = nets["g"](torch.randn(x.shape, generator=noise))
            (nets["d"](fake.detach()).mean() - nets["d"](x).mean()).backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            (-nets["d"](fake).mean()).backward()
            optimizers["g"].step()


def test_new_scalings_reach_a_compiled_step_and_detaching_ends_them():
    torch.compiler.reset()
    model, mine, sgs, twin, other = scaled()
    step = torch.compile(mine.step, backend="aot_eager")
    for G in (some_scalings(), {name: 2 * g for name, g in some_scalings().items()}, {}):
        sgs.set_scalings(G) if G else sgs.detach()
        other.scalings = G
        for batch in batches(2):
            mine.zero_grad()
            loss_of(model, batch).backward()
            step()
        train_(twin, other, batches(2))
        assert close_weights(model, twin)


class TestCopies:
    def test_copies_of_the_model_are_neither_scaled_nor_do_they_disturb(self):
        model, mine, _, twin, other = scaled()
        clone, plain = copy.deepcopy(model), copy.deepcopy(twin)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (clone, plain)]
        average, by_hand = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)), None
        for batch in batches():
            train_(model, mine, [batch])
            train_(clone, optimizers[0], [batch])
            average.update_parameters(model)
            train_(twin, other, [batch])
            train_by_hand_(plain, optimizers[1], [batch], {})
            new = [p.detach().clone() for p in twin.parameters()]
            by_hand = new if by_hand is None else [old.lerp(p, 0.5) for old, p in zip(by_hand, new, strict=True)]
        assert close_weights(model, twin)
        assert close_weights(clone, plain)
        for p, q in zip(average.module.parameters(), by_hand, strict=True):
            torch.testing.assert_close(p, q)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert same_weights(torch.load(file, weights_only=False), model)

    @pytest.mark.parametrize("how", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))])
    def test_a_copy_of_everything_is_scaled_as_the_original(self, how):
        model, mine, sgs, twin, other = scaled()
        sgs.detach()
        assert "detached" in repr(how(sgs))
        sgs.attach(mine)
        clone, clone_optimizer, clone_sgs = how((model, mine, sgs))
        train_(clone, clone_optimizer, batches())
        train_(twin, other, batches())
        assert close_weights(clone, twin)
        clone_sgs.detach()
        assert len(mine._optimizer_step_pre_hooks) == 1
