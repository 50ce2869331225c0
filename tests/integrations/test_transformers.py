"""The Transformers callback: training, resuming and ending, against training written out by hand."""

import importlib
import json
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from spatialgrad import NoEffectWarning, SpatialGradientScaling
from support.common import (
    BFLOAT16_ALIKE,
    UPDATES_ALIKE,
    TinyNet,
    close_weights,
    dataset,
    define_torchvision_operators,
    loss_of,
    rows,
    same_matrices,
    same_weights,
    step_by_hand_,
)

define_torchvision_operators()
transformers = importlib.import_module("transformers")
SpatialGradientScalingCallback = importlib.import_module(
    "spatialgrad.integrations.transformers"
).SpatialGradientScalingCallback


class Stream(IterableDataset):
    def __iter__(self):
        return iter(rows(32)[:16])


class Model(nn.Module):
    """A network with the interface that the Trainer expects, which remembers what it was shown."""

    def __init__(self):
        super().__init__()
        self.net = TinyNet()
        self.shown = []
        self.measured = []

    def forward(self, pixel_values, labels=None, index=None):
        (self.shown if self.training else self.measured).append(index.tolist())
        return {"loss": loss_of(self.net, (pixel_values, labels))}


def train(folder, model=None, callback=None, data=None, resume=None, others=(), **settings):
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "save_strategy": "no", **settings}
    if "max_steps" in settings:
        del settings["num_train_epochs"]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
        lr_scheduler_type="constant",
        **settings,
    )
    model = model or Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data or rows(),
        optimizers=(optimizer, None),
        callbacks=[*([callback] if callback else []), *others],
    )
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return model, optimizer


def by_hand(twin, shown, measured, *, accumulate=1, clip=1.0, apply="gradient", autocast=False):
    """Train on the batches that a model was shown, with updates before steps on the batches it was measured with.

    Args:
        twin: The network as it was at the beginning.
        shown: Indices of the images of each batch.
        measured: Indices of the images of the batches of each update, by the number of batches shown before it.
    """
    data = dataset()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    G = {}
    for number, (x, y) in enumerate(data[indices] for indices in shown):
        if number in measured:
            sgs = SpatialGradientScaling(twin, optimizer)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                G = sgs.update([data[indices] for indices in measured[number]])
            sgs.detach()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(twin, (x, y)) / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(twin.parameters(), clip)
            step_by_hand_(twin, optimizer, G, apply)
            optimizer.zero_grad()
    return twin


def start():
    """A model, and a copy of its network."""
    torch.manual_seed(0)
    twin = TinyNet()
    model = Model()
    model.net.load_state_dict(twin.state_dict())
    return model, twin


class TestTraining:
    @pytest.mark.parametrize("apply", ["gradient", "update"])
    @pytest.mark.parametrize("extra", [{}, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}])
    def test_as_by_hand(self, tmp_path, apply, extra):
        model, twin = start()
        callback = SpatialGradientScalingCallback(every=1, apply=apply)
        assert callback.scaling is None
        _, optimizer = train(tmp_path, model, callback, **extra)
        assert callback.scaling.num_updates == 2
        assert list(callback.scaling.scalings) == ["net.first", "net.wide", "net.last"]
        # two updates, each with two batches that were looked at twice
        first, second = model.measured[:4], model.measured[4:]
        assert (first[:2], second[:2]) == (first[2:], second[2:])
        by_hand(
            twin,
            model.shown,
            {4: first[:2], 8: second[:2]},
            accumulate=extra.get("gradient_accumulation_steps", 1),
            clip=extra.get("max_grad_norm", 1.0),
            apply=apply,
        )
        assert close_weights(model.net, twin, UPDATES_ALIKE)
        assert not optimizer._optimizer_step_pre_hooks
        assert "detached" in repr(callback.scaling)

    def test_in_bfloat16(self, tmp_path):
        model, twin = start()
        train(tmp_path, model, SpatialGradientScalingCallback(every=1), bf16=True)
        by_hand(twin, model.shown, {4: model.measured[:2], 8: model.measured[4:6]}, autocast=True)
        assert close_weights(model.net, twin, BFLOAT16_ALIKE)

    def test_updates_leave_the_order_of_the_data_as_it_was(self, tmp_path):
        plain, model = Model(), Model()
        train(tmp_path, plain)
        train(tmp_path, model, SpatialGradientScalingCallback(every=1))
        assert model.shown == plain.shown
        assert not plain.measured
        assert model.measured

    def test_a_forward_of_the_user(self, tmp_path):
        callback = SpatialGradientScalingCallback(
            warmup=0, batches=1, forward=lambda model, batch: model.net(batch["pixel_values"].flip(2))
        )
        model, twin = start()
        train(tmp_path, model, callback, num_train_epochs=1)
        assert not model.measured
        sgs = SpatialGradientScaling(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
        expected = sgs.update(dataset()[model.shown[0]][0].flip(2))
        assert torch.equal(callback.scaling.scalings["net.first"], expected["first"])

    def test_a_number_of_steps_that_ends_within_an_epoch(self, tmp_path):
        model, twin = start()
        train(tmp_path, model, SpatialGradientScalingCallback(every=1), max_steps=6)
        by_hand(twin, model.shown, {4: model.measured[:2]})
        assert len(model.shown) == 6
        assert close_weights(model.net, twin, UPDATES_ALIKE)

    def test_passes_over_a_stream_count_as_epochs(self, tmp_path):
        model, twin = start()
        callback = SpatialGradientScalingCallback(every=1, batches=1)
        train(tmp_path, model, callback, Stream(), max_steps=6)
        assert callback.scaling.num_updates == 2
        by_hand(twin, model.shown, {2: model.measured[:1], 4: model.measured[2:3]})
        assert close_weights(model.net, twin, UPDATES_ALIKE)

    @pytest.mark.parametrize("limit", [{"num_train_epochs": 1}, {"max_steps": 3}])
    def test_a_training_that_ends_before_its_first_update(self, tmp_path, limit):
        with pytest.warns(NoEffectWarning, match="first before epoch 1"):
            train(tmp_path, callback=SpatialGradientScalingCallback(), **limit)


@pytest.fixture(scope="module")
def whole(request, tmp_path_factory):
    """A training run of 4 epochs with 4 steps each, with the seedable sampler or not, and its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    settings = {"num_train_epochs": 4, "accelerator_config": {"use_seedable_sampler": request.param}}
    callback = SpatialGradientScalingCallback(every=1)
    torch.manual_seed(0)
    model, _ = train(folder, callback=callback, save_strategy="steps", save_steps=1, **settings)
    return model, callback, settings, folder


class TestCheckpoints:
    @pytest.mark.bits
    # Without the seedable sampler, the Trainer itself resumes with other data within an epoch.
    @pytest.mark.parametrize(
        ("whole", "step"),
        [(True, 3), (True, 4), (True, 6), (True, 8), (True, 11), (False, 4), (False, 8)],
        indirect=["whole"],
    )
    def test_resume_is_bit_exact(self, tmp_path, whole, step):
        model, callback, settings, folder = whole
        torch.manual_seed(99)
        again = SpatialGradientScalingCallback(every=1)
        resumed, _ = train(tmp_path, callback=again, resume=folder / f"checkpoint-{step}", **settings)
        assert same_weights(model, resumed)
        assert callback.scaling.num_updates == again.scaling.num_updates == 3
        assert same_matrices(callback.scaling.scalings, again.scaling.scalings)
        assert same_matrices(callback.scaling.dependence, again.scaling.dependence)

    def test_the_state_is_plain_json(self, tmp_path):
        callback = SpatialGradientScalingCallback(every=1)
        train(tmp_path, callback=callback, num_train_epochs=2, save_strategy="epoch")
        state = json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text())
        kept = state["stateful_callbacks"]["spatialgrad"]
        assert kept["scaling"]["num_updates"] == 1
        expected = callback.scaling.scalings["net.last"]
        assert torch.equal(torch.tensor(kept["scaling"]["scalings"]["net.last"]), expected)

    @pytest.mark.parametrize("strategy", ["epoch", "steps"])
    def test_what_the_user_sets_is_kept(self, tmp_path, strategy):
        callback = SpatialGradientScalingCallback(measure=None)

        class Setting(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                callback.scaling.set_scalings({"net.first": torch.full((3, 3), 1.0 + state.global_step)})

        train(tmp_path, callback=callback, others=[Setting()], num_train_epochs=1, save_strategy=strategy, save_steps=4)
        (folder,) = tmp_path.glob("checkpoint-*")
        kept = json.loads((folder / "trainer_state.json").read_text())["stateful_callbacks"]["spatialgrad"]
        last = callback.scaling.scalings["net.first"].tolist()
        assert kept["scaling"]["scalings"]["net.first"] == last == torch.full((3, 3), 4.0).tolist()

    def test_a_checkpoint_without_scaling(self, tmp_path):
        train(tmp_path, num_train_epochs=1, save_strategy="epoch")
        with pytest.warns(UserWarning, match="written without spatial gradient scaling"):
            train(tmp_path, callback=SpatialGradientScalingCallback(every=1), resume=tmp_path / "checkpoint-4")

    def test_a_second_training_starts_anew(self, tmp_path):
        callback = SpatialGradientScalingCallback(every=1)
        train(tmp_path, callback=callback)
        train(tmp_path, callback=callback)
        assert callback.scaling.num_updates == 2


def test_wrong_settings_are_noticed_at_once():
    with pytest.raises(ValueError, match="Invalid k: 0"):
        SpatialGradientScalingCallback(k=0)
    with pytest.raises(TypeError, match="batch_size"):
        SpatialGradientScalingCallback(batch_size=0)


def test_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "spatialgrad.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs Transformers.*pip install .*\[transformers\]'"):
        importlib.import_module("spatialgrad.integrations.transformers")
