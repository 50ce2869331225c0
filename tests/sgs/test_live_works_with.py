"""Live updates in every way to train that plain PyTorch offers, against trainings written by hand."""

import contextlib
import copy
import gc
import math
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from spatialgrad import Live, NoEffectWarning, SpatialGradientScaling
from support.common import (
    MATRICES_ALIKE,
    UPDATES_ALIKE,
    TinyNet,
    batches,
    close_matrices,
    close_weights,
    images,
    loss_of,
    same_matrices,
    same_weights,
    scale_by_hand_,
    train_,
)
from support.compiling import INDUCTOR
from support.live import (
    RANGES,
    SCHEDULE,
    LiveByHand,
    build,
    hooks_on,
    recording,
    scalings_by_hand,
    some_batches,
    train_by_hand,
    twins,
)


def halves(batch):
    """Two micro-batches of different size."""
    x, y = batch
    return [(x[:5], y[:5]), (x[5:], y[5:])]


def test_gradient_accumulation():
    model, optimizer, sgs, twin, other = twins()
    for batch in some_batches():
        optimizer.zero_grad()
        for part in halves(batch):
            loss_of(model, part).backward()
        optimizer.step()
    by_hand = train_by_hand(twin, other, some_batches(), passes=halves)
    assert sgs.num_updates == 1
    assert close_matrices(sgs.scalings, by_hand, MATRICES_ALIKE)
    assert close_weights(model, twin, UPDATES_ALIKE)


@pytest.mark.parametrize("by_keyword", [False, True])
def test_step_with_a_closure(by_keyword):
    model, optimizer, sgs, twin, other = twins()
    for batch in some_batches():

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
    by_hand = train_by_hand(twin, other, some_batches())
    assert close_matrices(sgs.scalings, by_hand, MATRICES_ALIKE)
    assert close_weights(model, twin, UPDATES_ALIKE)


def test_a_closure_that_is_evaluated_several_times_is_one_step():
    model, optimizer, sgs = build(optimizer=partial(torch.optim.LBFGS, max_iter=4), lr=0.05)
    seen = {"ranges": {}, "counts": {}}
    for step, batch in enumerate(batches(6)):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        with recording(model, seen["ranges" if step in (2, 3) else "counts"] if step > 1 else {}):
            optimizer.step(closure)
    assert len(seen["counts"]["first"]) > 2
    assert sgs.num_updates == 1
    assert close_matrices(sgs.scalings, scalings_by_hand(model, **seen), MATRICES_ALIKE)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_grad_scaler_skips(fused):
    """Without a step, the batch belongs to the next one; a fused optimizer steps and changes nothing."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    sgs = SpatialGradientScaling(model, optimizer, live=Live(at=(0,), every=20, batches=2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = {"ranges": {}, "counts": {}}
    order = ["ranges", "ranges", "counts", "counts"] if fused else ["ranges", "ranges", "ranges", "counts", "counts"]
    for step, (batch, kind) in enumerate(zip(batches(len(order)), order, strict=True)):
        optimizer.zero_grad()
        with recording(model, seen[kind]):
            loss = loss_of(model, batch)
        scaler.scale(loss * (math.inf if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0
    assert sgs.num_updates == 1
    assert hooks_on(model) == 0
    assert close_matrices(sgs.scalings, scalings_by_hand(model, **seen), MATRICES_ALIKE)


def test_bfloat16_autocast():
    model, optimizer, sgs = build()
    seen = {"ranges": {}, "counts": {}}
    for step, (x, y) in enumerate(some_batches(6)):
        optimizer.zero_grad()
        with (
            torch.autocast("cpu", torch.bfloat16),
            recording(model, seen["ranges" if step in (2, 3) else "counts"] if step > 1 else {}),
        ):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert seen["counts"]["last"][0].dtype == torch.bfloat16
    assert close_matrices(sgs.scalings, scalings_by_hand(model, **seen), MATRICES_ALIKE)


class TestSeveralOptimizers:
    def split(self, model):
        late = [*model.last.parameters(), *model.head.parameters()]
        early = [p for p in model.parameters() if not any(p is q for q in late)]
        return [torch.optim.SGD(early, lr=0.1), torch.optim.SGD(late, lr=0.1)]

    def test_each_counts_its_own_steps(self):
        torch.manual_seed(0)
        model = TinyNet()
        first, second = optimizers = self.split(model)
        sgs = SpatialGradientScaling(model, optimizers, live=SCHEDULE)
        updates = []
        for step, batch in enumerate(batches(12)):
            train_(model, first, [batch])
            if step % 2:
                second.step()
            model.zero_grad()
            updates.append(sgs.num_updates)
        # The first one updates after its step 6, the second after its step 6, which is the twelfth of the loop.
        assert updates == [0] * 5 + [1] * 6 + [3]
        assert all(not torch.equal(G, torch.ones_like(G)) for G in sgs.scalings.values())

    def test_together_they_do_what_one_does(self):
        torch.manual_seed(0)
        model = TinyNet()
        twin = copy.deepcopy(model)
        optimizers = self.split(model)
        sgs = SpatialGradientScaling(model, optimizers, live=SCHEDULE)
        for batch in some_batches():
            model.zero_grad()
            loss_of(model, batch).backward()
            for optimizer in optimizers:
                optimizer.step()
        by_hand = train_by_hand(twin, torch.optim.SGD(twin.parameters(), lr=0.1), some_batches())
        assert close_matrices(sgs.scalings, by_hand, MATRICES_ALIKE)
        assert close_weights(model, twin, UPDATES_ALIKE)


class TestGan:
    """Two networks, each with its optimizer, live on both."""

    @pytest.mark.parametrize("loop", ["frozen", "detached"])
    def test_a_generator_and_a_discriminator(self, loop):
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1))
        judge = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
        pair = nn.ModuleDict({"g": generator, "d": judge})
        copies = copy.deepcopy(pair)
        optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5) for name, net in pair.items()}
        sgs = SpatialGradientScaling(
            pair, list(optimizers.values()), live=Live(at=(RANGES[0],), every=100, batches=len(RANGES))
        )
        by_hand = {
            name: LiveByHand(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5))
            for name, net in copies.items()
        }

        train = {"frozen": self.train_frozen, "detached": self.train_detached}[loop]
        train(pair, optimizers, dict.fromkeys(pair, contextlib.nullcontext))
        train(copies, by_hand, {name: trainer.watching for name, trainer in by_hand.items()})

        scalings = {f"{name}.{layer}": G for name, trainer in by_hand.items() for layer, G in trainer.scalings.items()}
        assert sgs.num_updates == 2
        assert all(not torch.equal(G, torch.ones_like(G)) for G in scalings.values())
        assert close_matrices(sgs.scalings, scalings, MATRICES_ALIKE)
        assert close_weights(pair, copies, UPDATES_ALIKE)

    @staticmethod
    def train_frozen(nets, optimizers, observed):
        """The discriminator steps twice as often and is frozen meanwhile; its fakes are made without gradients."""
        noise = torch.Generator().manual_seed(1)
        for step, (x, _) in enumerate(batches(18)):
            z = torch.randn(x.shape, generator=noise)
            nets["d"].requires_grad_(True)
            optimizers["d"].zero_grad()
            with torch.no_grad():
                fake = nets["g"](z)
            with observed["d"]():
                loss = nets["d"](fake).mean() - nets["d"](x).mean()
            loss.backward()
            optimizers["d"].step()
            if step % 2:
                nets["d"].requires_grad_(False)
                optimizers["g"].zero_grad()
                with observed["g"]():
                    fake = nets["g"](z)
                (-nets["d"](fake).mean()).backward()
                optimizers["g"].step()

    @staticmethod
    def train_detached(nets, optimizers, observed):
        """One pass of the generator serves both; the generator's step passes through the discriminator's weights."""
        noise = torch.Generator().manual_seed(1)
        for x, _ in batches(9):
            optimizers["d"].zero_grad()
            with observed["g"]():
                fake = nets["g"](torch.randn(x.shape, generator=noise))
            with observed["d"]():
                loss = nets["d"](fake.detach()).mean() - nets["d"](x).mean()
            loss.backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            with observed["d"]():  # counts with the discriminator's next step
                loss = -nets["d"](fake).mean()
            loss.backward()
            optimizers["g"].step()


@pytest.mark.usefixtures("fresh_compiler")
class TestCompile:
    """Compiled without code generation here; observed steps run uncompiled."""

    @pytest.fixture
    def fresh_compiler(self):
        gc.collect()  # updates of other tests that are still under way
        torch.compiler.reset()
        assert torch._dynamo.eval_frame._stance.stance == "default"

    @pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
    @pytest.mark.parametrize("what", ["model", "model and step", "everything"])
    def test_compiled(self, what, backend):
        model, optimizer, sgs, twin, other = twins()
        compiled = torch.compile(model, backend=backend)
        step = optimizer.step if what == "model" else torch.compile(optimizer.step, backend=backend)

        def train(net, batch, step):
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            step()

        for batch in some_batches():
            if what == "everything":
                torch.compile(train, backend=backend)(model, batch, optimizer.step)
            else:
                train(compiled, batch, step)
        assert sgs.num_updates == 1
        assert hooks_on(model) == 0
        assert torch._dynamo.eval_frame._stance.stance == "default"
        by_hand = train_by_hand(twin, other, some_batches())
        assert close_matrices(sgs.scalings, by_hand, MATRICES_ALIKE)
        assert close_weights(model, twin, UPDATES_ALIKE)

    def test_updates_of_several_optimizers_that_overlap_leave_the_compiler_as_it_was(self):
        model = TinyNet()
        optimizers = TestSeveralOptimizers().split(model)
        SpatialGradientScaling(model, optimizers, live=SCHEDULE)
        compiled = torch.compile(model, backend="aot_eager")
        with torch.compiler.set_stance("eager_on_recompile"):
            for step, batch in enumerate(batches(13)):
                train_(compiled, optimizers[0], [batch])
                if step % 2:
                    optimizers[1].step()
            assert torch._dynamo.eval_frame._stance.stance == "eager_on_recompile"

    def test_an_update_that_is_abandoned_does_not_leave_the_compiler_off(self):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(3))
        assert torch._dynamo.eval_frame._stance.stance == "force_eager"
        gone = [weakref.ref(part) for part in (model, optimizer, sgs)]
        del model, optimizer, sgs
        gc.collect()
        assert [reference() for reference in gone] == [None] * 3
        assert torch._dynamo.eval_frame._stance.stance == "default"


def test_graphed_forward_passes_are_reported():
    """Where hooks do not run, as in replayed CUDA graphs, nothing is observed, and that is said."""

    class Replayed(TinyNet):
        def __call__(self, x):
            x = nn.functional.conv2d(x, self.first.weight, self.first.bias, padding=1)
            return nn.functional.conv2d(x, self.last.weight[:5]).mean((2, 3))

    model, optimizer, sgs = build(Replayed())
    before = sgs.scalings
    with pytest.warns(NoEffectWarning, match="Convolutions first, wide, last were not called"):
        train_(model, optimizer, batches(6))
    assert same_matrices(sgs.scalings, before)


@pytest.mark.parametrize("apply", ["gradient", "update"])
def test_both_places_measure_the_same(apply):
    model, optimizer, sgs = build(apply=apply)
    train_(model, optimizer, some_batches(6))
    reference, other, by_gradient = build(apply="gradient")
    train_(reference, other, some_batches(6))
    assert same_weights(model, reference)  # nothing is scaled before the end of the sixth step
    assert same_matrices(sgs.scalings, by_gradient.scalings)


def test_clipping_comes_before_scaling():
    model, optimizer, sgs, twin, other = twins()
    train_(model, optimizer, some_batches(6))
    by_hand = train_by_hand(twin, other, some_batches(6))
    for net, stepper in ((model, optimizer), (twin, other)):
        stepper.zero_grad()
        loss_of(net, images(seed=3)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-2)
    optimizer.step()
    scale_by_hand_(twin, by_hand)
    other.step()
    assert sgs.num_updates == 1
    assert close_weights(model, twin, UPDATES_ALIKE)
