"""Live updates: what is observed, when, and what a checkpoint holds."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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
    train_,
)
from support.live import SCHEDULE, STEPS, build, hooks_on, some_batches, train_by_hand, trained, twins


class TestSchedule:
    def test_it_does_what_a_hand_written_training_does(self):
        model, optimizer, sgs, twin, other = twins()
        train_(model, optimizer, some_batches())
        by_hand = train_by_hand(twin, other, some_batches())
        assert close_matrices(sgs.scalings, by_hand, MATRICES_ALIKE)
        assert close_weights(model, twin, UPDATES_ALIKE)

    def test_hooks_are_there_during_updates_alone(self):
        model, optimizer, sgs = build()
        seen = []
        for batch in batches(14):
            seen.append((hooks_on(model), sgs.num_updates))
            train_(model, optimizer, [batch])
        assert seen == [(0, 0)] * 2 + [(3, 0)] * 4 + [(0, 1)] * 2 + [(3, 1)] * 4 + [(0, 2)] * 2
        assert not sgs.due(1)

    def test_warmup_0_observes_the_first_step(self):
        model, optimizer, sgs = build(live=Live(at=(0,), every=8, batches=1))
        train_(model, optimizer, batches(2))
        assert sgs.num_updates == 1

    def test_the_defaults_are_the_paper_s_schedule(self):
        schedule = Live()
        assert [step for step in range(6000) if schedule.due(step)] == [391, 1955, 3910, 5865]
        assert [schedule.next_update(step) for step in (0, 390, 391, 1955)] == [391, 391, 1955, 3910]
        assert build(live=True)[2].live == schedule
        assert build(live=False)[2].live is None

    def test_a_measure_with_a_single_pass_needs_half_the_steps(self):
        def constant(maps, kernel_size, **geometry):
            return torch.full((maps.shape[1], *kernel_size), 0.5)

        model, optimizer, sgs = build(measure=constant)
        train_(model, optimizer, batches(4))
        assert sgs.num_updates == 1
        assert hooks_on(model) == 0

    def test_updates_with_a_loader_are_possible_in_between(self):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(3))
        sgs.update(batches(2))
        assert hooks_on(model) == 3
        train_(model, optimizer, batches(3))
        assert sgs.num_updates == 2

    def test_representation(self):
        model, optimizer, sgs = build()
        assert "live (step 0, next update after step 2), updates=0" in repr(sgs)
        train_(model, optimizer, batches(2))
        assert "live (step 2, updating now)" in repr(sgs)
        sgs.detach()
        assert "live (step 2, next update after step 8)" in repr(sgs)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"live": True, "measure": None}, "static"),
            ({"live": True, "warmup": 3}, r"live=Live\(warmup"),
            ({"live": True, "every": 1}, "epochs"),
            ({"live": 3}, "Invalid live: 3"),
        ],
    )
    def test_settings_that_do_not_go_together(self, settings, message):
        with pytest.raises(ValueError, match=message):
            build(**settings)

    @pytest.mark.parametrize(
        "settings", [{"warmup": -1}, {"every": 3}, {"batches": 0}, {"batches": 1.5}, {"every": 0}, {"warmup": "1"}]
    )
    def test_invalid_schedules(self, settings):
        with pytest.raises(ValueError, match="Invalid schedule"):
            Live(**settings)


class Checkpointed(TinyNet):
    """Recomputes activations in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        # Reentrant checkpoints need an input that requires a gradient.
        x = x.clone().requires_grad_(self.training)
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class TestWhatIsObserved:
    """Whatever else happens with the model during an update, the scalings are those of an undisturbed training."""

    def disturbed(self, disturbance):
        model, optimizer, sgs = build()
        for batch in some_batches():
            disturbance(model)
            train_(model, optimizer, [batch])
        return sgs

    @pytest.mark.parametrize(
        "kind",
        ["validation", "no gradients", "inference mode", "frozen", "copy", "pickled", "fake", "traced", "torch.func"],
    )
    def test_other_passes_are_not(self, kind):
        x = 100 * images(seed=50)[0]

        def disturbance(model):
            if kind == "validation":
                model.eval()(x).sum()
                model.train()
            elif kind == "no gradients":
                with torch.no_grad():
                    model(x)
            elif kind == "inference mode":
                with torch.inference_mode():
                    model(x)
            elif kind == "frozen":
                model.requires_grad_(False)(x)
                model.requires_grad_(True)
            elif kind == "copy":
                twin = copy.deepcopy(model)
                twin(x).sum().backward()
                assert hooks_on(twin) == 0
            elif kind == "pickled":
                twin = pickle.loads(pickle.dumps(model))
                twin(x).sum().backward()
                assert hooks_on(twin) == 0
            elif kind == "fake":
                with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    model(mode.from_tensor(x))
            elif kind == "traced":
                torch.jit.trace(model, x, check_trace=False)
            else:
                parameters = {name: p.detach() for name, p in model.named_parameters()}
                torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(parameters)

        assert same_matrices(self.disturbed(disturbance).scalings, trained()[1].scalings)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_recomputed_activations_count_once(self, reentrant):
        model, sgs = trained(Checkpointed(reentrant))
        torch.manual_seed(0)
        reference, plain = trained(Checkpointed.__base__())
        assert close_weights(model, reference, UPDATES_ALIKE)
        assert close_matrices(sgs.scalings, plain.scalings, MATRICES_ALIKE)

    def test_an_empty_batch_adds_nothing(self):
        model, optimizer, sgs = build()
        for batch in some_batches():
            model(torch.zeros(0, 3, 10, 10))
            train_(model, optimizer, [batch])
        assert same_matrices(sgs.scalings, trained()[1].scalings)

    def test_a_layer_that_is_not_called_keeps_its_scaling(self):
        class Skipping(TinyNet):
            def forward(self, x):
                return self.head(self.last(self.point(self.first(x))).mean((2, 3)))

        model, optimizer, sgs = build(Skipping())
        with pytest.warns(NoEffectWarning, match="Convolutions wide were not called"):
            train_(model, optimizer, batches(6))
        assert torch.equal(sgs.scalings["wide"], torch.ones(1, 3))
        assert not torch.equal(sgs.scalings["first"], torch.ones(3, 3))
        train_(model, optimizer, batches(8))  # warnings are errors here
        assert sgs.num_updates == 2

    def test_a_layer_that_is_called_in_one_of_the_passes_only_keeps_its_scaling(self):
        class Skipping(TinyNet):
            skip = False

            def forward(self, x):
                x = self.first(x)
                return self.head(self.last(self.point(x if self.skip else self.wide(x))).mean((2, 3)))

        for missing in ((2, 3), (4, 5)):
            model, optimizer, sgs = build(Skipping())
            for step, batch in enumerate(batches(5)):
                model.skip = step in missing
                train_(model, optimizer, [batch])
            model.skip = 5 in missing
            with pytest.warns(NoEffectWarning, match="Convolutions wide were not called"):
                train_(model, optimizer, batches(1))
            assert torch.equal(sgs.scalings["wide"], torch.ones(1, 3))

    @pytest.mark.parametrize("step", [2, 4])
    @pytest.mark.parametrize("settings", [{}, {"drop_near": True}, {"dependence": "autocorrelation"}])
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_values_that_are_not_finite_do_not_stop_the_training(self, step, settings, value):
        model, optimizer, sgs = build(**settings)
        before = sgs.scalings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for index, (x, y) in enumerate(batches(6)):
                if index == step:
                    x[0, 0, 0, 0] = value
                weights = copy.deepcopy(model.state_dict())
                train_(model, optimizer, [(x, y)])
                model.load_state_dict(weights)  # as if the step had been skipped
        assert sgs.num_updates == 1
        if step == 2:
            assert "NaN or infinite inputs in a live update" in str(caught[0].message)
            assert same_matrices(sgs.scalings, before)
        assert all(bool(G.isfinite().all()) for G in sgs.scalings.values())


def test_data_parallel_is_refused():
    model = TinyNet()
    wrapped = nn.DataParallel(model)
    wrapped.device_ids = [0, 1]
    with pytest.raises(ValueError, match="cannot observe DataParallel"):
        SpatialGradientScaling(wrapped, torch.optim.SGD(model.parameters(), lr=0.1), live=SCHEDULE)


def test_a_captured_step_is_refused(monkeypatch):
    model, optimizer, _ = build()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    loss_of(model, images()).backward()
    with pytest.raises(RuntimeError, match="CUDA graph"):
        optimizer.step()


def test_the_loop_of_this_file_is_long_enough():
    assert STEPS == SCHEDULE.warmup + 2 * SCHEDULE.batches + 1
