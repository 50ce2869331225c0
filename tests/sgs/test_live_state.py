"""Live updates in checkpoints and copies, also in the middle of an update."""

import copy
import io

import pytest
import torch

from support.common import (
    TinyNet,
    batches,
    images,
    same_matrices,
    same_weights,
    train_,
)
from support.live import build, hooks_on, some_batches, trained


class TestState:
    @pytest.mark.parametrize("settings", [{}, {"drop_near": True}, {"dependence": "autocorrelation"}, {"memory": 8000}])
    def test_a_training_resumes_bit_by_bit_from_any_step(self, settings):
        data = some_batches(10)
        model, sgs = trained(data=data, **settings)
        assert sgs.num_updates >= 1
        for stop in range(1, 10):
            first, optimizer, scaling = build(**settings)
            train_(first, optimizer, data[:stop])
            file = io.BytesIO()
            torch.save([first.state_dict(), optimizer.state_dict(), scaling.state_dict()], file)
            file.seek(0)
            second, optimizer, scaling = build(TinyNet(), **settings)
            for part, state in zip((second, optimizer, scaling), torch.load(file, weights_only=True), strict=True):
                part.load_state_dict(state)
            train_(second, optimizer, data[stop:])
            assert same_weights(second, model)
            assert same_matrices(scaling.scalings, sgs.scalings)
            assert scaling.num_updates == sgs.num_updates

    def test_a_state_is_a_copy(self):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(5))
        state = sgs.state_dict()
        kept = copy.deepcopy(state)
        train_(model, optimizer, batches(1))
        assert str(state) == str(kept)

    def test_states_with_and_without_live_updates(self):
        live, plain = build()[2], build(live=False)[2]
        live.load_state_dict(plain.state_dict())
        plain.load_state_dict(live.state_dict())
        assert "live" not in plain.state_dict()

    def test_the_state_of_another_number_of_optimizers_is_refused(self):
        sgs = build()[2]
        state = sgs.state_dict()
        with pytest.raises(ValueError, match="for 2 optimizers, but 1"):
            sgs.load_state_dict(state | {"live": state["live"] * 2})

    @pytest.mark.parametrize(
        "bad",
        [
            {"step": "x"},
            {"step": -3},
            {"steps_in_pass": 1.5},
            {"measurement": {"number": 1}},
            {"measurement": 5},
        ],
        ids=str,
    )
    def test_an_invalid_state_changes_nothing(self, bad):
        model, optimizer, sgs = build()
        train_(model, optimizer, batches(3))
        before, hooks = sgs.state_dict(), hooks_on(model)
        assert before["live"][0]["measurement"] is not None
        for state in ([before["live"][0] | bad], [{}], 5):
            with pytest.raises(ValueError, match="Invalid state of live updates in the state_dict"):
                sgs.load_state_dict(before | {"live": state, "num_updates": 7})
        assert str(sgs.state_dict()) == str(before)
        assert hooks_on(model) == hooks

    def test_copies_continue_on_their_own(self):
        model, optimizer, sgs = build()
        data = some_batches()
        train_(model, optimizer, data[:3])
        twin, other, copied = copy.deepcopy((model, optimizer, sgs))
        train_(twin, other, data[3:])
        assert (copied.num_updates, sgs.num_updates) == (1, 0)
        train_(model, optimizer, data[3:])
        assert same_weights(model, twin)
        assert same_matrices(sgs.scalings, copied.scalings)
        assert hooks_on(model) == 0

    def test_detaching_stops_and_attaching_continues(self):
        model, optimizer, sgs = build()
        data = some_batches()
        train_(model, optimizer, data[:4])
        sgs.detach()
        assert hooks_on(model) == 0
        assert "live" in sgs.state_dict()
        model(images(seed=9)[0])
        sgs.attach(optimizer)
        sgs.attach(optimizer)
        assert hooks_on(model) == 3
        train_(model, optimizer, data[4:])
        assert same_matrices(sgs.scalings, trained()[1].scalings)
