"""Live updates: what is observed, when, and what a checkpoint holds. That they work with every way to train is tested
by test_works_with.py."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from spatialgrad import Live, NoEffectWarning, SpatialGradientScaling
from spatialgrad.sgs.dependence.mutual_information import MutualInformation
from support.common import (
    TinyNet,
    batches,
    images,
    loss_of,
    python_environment,
    same_matrices,
    same_weights,
    train_,
)
from support.live import SCHEDULE, build, hooks_on, some_batches, trained


class TestSchedule:
    def test_hooks_are_there_during_updates_alone(self):
        model, optimizer, sgs = build()
        seen = []
        for batch in batches(14):
            seen.append((hooks_on(model), sgs.updating, sgs.num_updates))
            train_(model, optimizer, [batch])
        # Before its first step, an update has gathered nothing that a checkpoint would lose.
        updates = [[(3, False, n), *[(3, True, n)] * 3] for n in range(2)]
        assert seen == [(0, False, 0)] * 2 + updates[0] + [(0, False, 1)] * 2 + updates[1] + [(0, False, 2)] * 2
        assert not model._forward_hooks
        assert not sgs.due(1)

    @pytest.mark.parametrize(
        ("schedule", "starts"),
        [
            (Live(), [100, 200, 400, 800, 1600, 3555, 5510]),
            (Live.paper(), [391, 1955, 3910, 5865]),  # after epoch 1, 5, 10, …
            (Live(at=(0,), every=2500), [0, 2500, 5000]),
            (Live(at=(100, 200, 400), every=2000), [100, 200, 400, 2400, 4400]),
        ],
    )
    def test_when_updates_begin(self, schedule, starts):
        assert [step for step in range(6000) if schedule.due(step)] == starts
        following = [schedule.next_update(step) for step in range(starts[-1])]
        assert following == [next(start for start in starts if start > step) for step in range(starts[-1])]

    @pytest.mark.parametrize(
        ("settings", "steps", "updates", "hooks"),
        [
            # The first step may begin an update, and the end of one the next.
            ({"live": Live(at=(0,), every=2, batches=1)}, 4, 2, 3),
            # A measure with a single pass needs half the steps.
            ({"measure": lambda maps, size, **_: torch.full((maps.shape[1], *size), 0.5)}, 4, 1, 0),
        ],
    )
    def test_how_many_steps_an_update_takes(self, settings, steps, updates, hooks):
        model, optimizer, sgs = build(**settings)
        train_(model, optimizer, batches(steps))
        assert (sgs.num_updates, hooks_on(model)) == (updates, hooks)

    def test_updates_with_a_loader_are_possible_in_between(self):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(3))
        sgs.update(batches(2))
        assert hooks_on(model) == 3
        train_(model, optimizer, batches(3))
        assert sgs.num_updates == 2

    def test_representation(self):
        model, optimizer, sgs = build()
        assert "live (step 0, next update: after step 2), updates=0" in repr(sgs)
        assert (build(live=True)[2].live, build(live=False)[2].live) == (Live(), None)
        train_(model, optimizer, batches(2))
        assert "live (step 2, next update: now)" in repr(sgs)
        sgs.detach(warn=False)
        assert "live (step 2, next update: detached)" in repr(sgs)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"at": (-1,)}, r"at: \(-1,\)"),
            ({"at": 5}, "at: 5"),
            ({"at": ()}, r"at: \(\)"),
            ({"at": ("1",)}, "at: "),
            ({"every": 0}, "every: 0"),
            ({"batches": 0}, "batches: 0"),
            ({"batches": 1.5}, "batches: 1.5"),
            ({"every": 3}, "schedule: an update takes 4 steps"),
            ({"at": (5, 8)}, "schedule: an update takes 4 steps"),
            ({"at": (8, 5)}, "schedule: an update takes 4 steps"),
        ],
    )
    def test_invalid_schedules(self, settings, message):
        with pytest.raises(ValueError, match=f"Invalid {message}"):
            Live(**settings)


def in_evaluation_mode(model, x):
    model.eval()(x).sum()
    model.train()


def frozen(model, x):
    model.requires_grad_(False)(x)
    model.requires_grad_(True)


def faked(model, x):
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(x))


def functional(model, x):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(parameters)


NOT_OBSERVED = {
    "validation": in_evaluation_mode,
    "no gradients": torch.no_grad()(lambda model, x: model(x)),
    "inference mode": torch.inference_mode()(lambda model, x: model(x)),
    "frozen": frozen,
    "copied": lambda model, x: copy.deepcopy(model)(x).sum().backward(),
    "pickled": lambda model, x: pickle.loads(pickle.dumps(model))(x).sum().backward(),
    "fake": faked,
    "traced": lambda model, x: torch.jit.trace(model, x, check_trace=False),
    "torch.func": functional,
    "empty": lambda model, x: model(x[:0]),
}


@pytest.mark.parametrize("kind", NOT_OBSERVED)
def test_other_passes_are_not_observed(kind):
    """Whatever else happens with the model during an update, the scalings are those of an undisturbed training."""
    model, optimizer, sgs = build()
    for batch in some_batches():
        NOT_OBSERVED[kind](model, 100 * images(seed=50)[0])
        train_(model, optimizer, [batch])
    assert same_matrices(sgs.scalings, trained()[1].scalings)


class Skipping(TinyNet):
    """Does not call the layer `wide` if it should not."""

    skip = True

    def forward(self, x):
        x = self.first(x)
        return self.head(self.last(self.point(x if self.skip else self.wide(x))).mean((2, 3)))


class TestWhatCannotBeMeasured:
    """A layer that cannot be measured keeps its scaling and is named once; the training goes on."""

    @pytest.mark.parametrize("missing", [range(14), (2, 3), (4, 5)])
    def test_a_layer_that_is_not_called(self, missing):
        model, optimizer, sgs = build(Skipping())
        for step, batch in enumerate(batches(14)):
            model.skip = step in missing
            if step == 5:
                with pytest.warns(NoEffectWarning, match="Convolutions wide were not called"):
                    train_(model, optimizer, [batch])
                assert torch.equal(sgs.scalings["wide"], torch.ones(1, 3))
                assert not torch.equal(sgs.scalings["first"], torch.ones(3, 3))
            else:
                train_(model, optimizer, [batch])  # warnings are errors here
        assert sgs.num_updates == 2

    @pytest.mark.parametrize(
        ("step", "settings", "value"),
        [
            (2, {}, torch.nan),
            (5, {"drop_near": True}, torch.inf),
        ],
    )
    def test_values_that_are_not_finite_in_any_pass(self, step, settings, value):
        model, optimizer, sgs = build(**settings)
        given = {name: torch.full_like(G, 0.5) for name, G in sgs.scalings.items()}
        sgs.set_scalings(given)
        data = batches(6)
        data[step][0][0, :, 0, 0] = value
        for batch in data[:5]:
            weights = copy.deepcopy(model.state_dict())
            train_(model, optimizer, [batch])
            model.load_state_dict(weights)  # as if the step had been skipped
        with pytest.warns(NoEffectWarning, match="Convolutions first, wide, last had NaN or infinite inputs"):
            train_(model, optimizer, data[5:])
        assert same_matrices(sgs.scalings, given)
        assert sgs.dependence == {}

    def test_a_training_that_runs_in_evaluation_mode(self):
        """As if forward passes were replayed from a CUDA graph, where hooks do not run."""
        model, optimizer, sgs = build(TinyNet().eval())
        for _ in range(2):
            train_(model, optimizer, batches(5))
            with pytest.warns(NoEffectWarning, match=r"saw no forward pass in training mode .*model\.train\(\)"):
                train_(model, optimizer, batches(1))
        assert sgs.num_updates == 0


class TestInterruptions:
    @pytest.fixture(autouse=True)
    def _fresh_compiler(self):
        gc.collect()  # updates of other tests that are still under way
        torch.compiler.reset()
        assert self.stance() == "default"

    @staticmethod
    def stance():
        return torch._dynamo.eval_frame._stance.stance

    def test_an_update_that_is_abandoned_does_not_leave_the_compiler_off(self):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(3))
        assert self.stance() == "force_eager"
        gone = [weakref.ref(part) for part in (model, optimizer, sgs)]
        del model, optimizer, sgs
        gc.collect()
        assert [reference() for reference in gone] == [None] * 3
        assert self.stance() == "default"

    @pytest.mark.parametrize(("error", "ends"), [(RuntimeError, True), (KeyboardInterrupt, False)])
    def test_a_forward_pass_that_raises(self, error, ends, monkeypatch):
        """An error ends the update; after Ctrl-C, a training that goes on finishes it."""
        model, optimizer, sgs = build()
        compiled = torch.compile(model, backend="aot_eager")
        train_(compiled, optimizer, batches(3))

        def interrupted(*_):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(MutualInformation, "observe", interrupted)
            with pytest.raises(ValueError if ends else error):
                loss_of(compiled, images())
        assert torch.is_grad_enabled()
        assert (self.stance(), sgs.updating) == (("default", False) if ends else ("force_eager", True))
        assert hooks_on(model) == (0 if ends else 3)
        train_(compiled, optimizer, batches(9))  # the next update comes in its turn
        assert sgs.num_updates == (1 if ends else 2)
        assert self.stance() == "default"

    @pytest.mark.parametrize(("last", "warns"), [("", True), ("sgs.detach(warn=False)", False)])
    def test_a_script_that_ends_within_an_update_only_says_that_it_had_no_effect(self, last, warns):
        code = f"""
import torch
from spatialgrad import Live, SpatialGradientScaling
model = torch.compile(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sgs = SpatialGradientScaling(model, optimizer, live=Live(at=(1,), every=9))
for _ in range(2):
    model(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
{last}
"""
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, capture_output=True, text=True, env=python_environment(), check=True)
        said = "NoEffectWarning: No scaling was measured in 2 steps, so nothing was scaled"
        assert (said in run.stderr) == warns
        assert "Traceback" not in run.stderr
        assert "Exception ignored" not in run.stderr

    def test_what_cannot_be_observed_is_refused(self, monkeypatch):
        model = TinyNet()
        wrapped = nn.DataParallel(model)
        wrapped.device_ids = [0, 1]
        with pytest.raises(ValueError, match="cannot observe DataParallel"):
            SpatialGradientScaling(wrapped, torch.optim.SGD(model.parameters(), lr=0.1), live=SCHEDULE)
        model, optimizer, _ = build()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        loss_of(model, images()).backward()
        with pytest.raises(RuntimeError, match="CUDA graph"):
            optimizer.step()


class TestState:
    @pytest.mark.parametrize(
        "settings", [{}, {"drop_near": True}, {"measure": "autocorrelation"}, {"max_channels": 2}], ids=str
    )
    def test_a_training_resumes_bit_by_bit_unless_it_stops_within_an_update(self, settings):
        data = some_batches(10)
        model, sgs = trained(data=data, **settings)
        assert sgs.num_updates == 1
        for stop in range(1, 10):
            first, optimizer, scaling = build(**settings)
            train_(first, optimizer, data[:stop])
            assert scaling.state_dict()["live"] == [{"step": stop, "updating": stop in (2, 3, 4, 5, 8, 9)}]
            file = io.BytesIO()
            torch.save([first.state_dict(), optimizer.state_dict(), scaling.state_dict()], file)
            file.seek(0)
            second, optimizer, resumed = build(TinyNet(), **settings)
            for part, state in zip((second, optimizer, resumed), torch.load(file, weights_only=True), strict=True):
                part.load_state_dict(state)
            train_(second, optimizer, data[stop:])
            assert resumed.num_updates == sgs.num_updates  # an update that began again ends by step 9
            # Nothing was gathered yet at the first step of an update.
            if stop not in (3, 4, 5):
                assert same_weights(second, model)
                assert same_matrices(resumed.scalings, sgs.scalings)

    def test_states_with_and_without_live_updates(self):
        live, plain = build()[2], build(live=False)[2]
        live.load_state_dict(plain.state_dict())
        plain.load_state_dict(live.state_dict())
        assert "live" not in plain.state_dict()

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ([{"step": "x", "updating": False}], "Not a state_dict"),
            ([{}], "Not a state_dict"),
            ([5], "Not a state_dict"),
            (5, "Not a state_dict"),
            ([{"step": 3, "updating": False}] * 2, "for 2 optimizers, but 1"),
        ],
        ids=str,
    )
    def test_an_invalid_state_changes_nothing(self, bad, message):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(3))
        before, hooks = sgs.state_dict(), hooks_on(model)
        with pytest.raises(ValueError, match=message):
            sgs.load_state_dict(before | {"live": bad, "num_updates": 7})
        assert str(sgs.state_dict()) == str(before)
        assert hooks_on(model) == hooks

    def test_copies_continue_on_their_own(self):
        model, optimizer, sgs = build()
        data = some_batches()
        train_(model, optimizer, data[:2])
        twin, other, copied = copy.deepcopy((model, optimizer, sgs))
        assert hooks_on(twin) == 6  # those of the original have no effect there
        train_(twin, other, data[2:])
        assert (copied.num_updates, sgs.num_updates) == (1, 0)
        train_(model, optimizer, data[2:])
        assert same_weights(model, twin)
        assert same_matrices(sgs.scalings, copied.scalings)
        assert hooks_on(model) == 0

    def test_detaching_stops_and_attaching_begins_the_update_again(self):
        model, optimizer, sgs = build()
        data = some_batches()
        train_(model, optimizer, data[:2])
        sgs.detach(warn=False)
        assert hooks_on(model) == 0
        assert sgs.state_dict()["live"] == [{"step": 2, "updating": True}]
        model(images(seed=9)[0])
        sgs.attach(optimizer)
        sgs.attach(optimizer)
        assert hooks_on(model) == 3
        train_(model, optimizer, data[2:])
        assert same_matrices(sgs.scalings, trained()[1].scalings)
