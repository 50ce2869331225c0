"""The Lightning callback: training, resuming and ending, against training written out by hand."""

import copy
import importlib
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from spatialgrad import NoEffectWarning, SpatialGradientScaling, scaling_from_ratios
from support.common import (
    BFLOAT16_ALIKE,
    UPDATES_ALIKE,
    TinyNet,
    close_weights,
    dataset,
    loss_of,
    same_matrices,
    same_weights,
    step_by_hand_,
)
from support.lightning_module import IGNORED_WARNINGS, QUIET, Module, pl

SpatialGradientScalingCallback = importlib.import_module(
    "spatialgrad.integrations.lightning"
).SpatialGradientScalingCallback

pytestmark = pytest.mark.filterwarnings(*IGNORED_WARNINGS)


def trainer(callback, **settings):
    settings = QUIET | {"enable_checkpointing": "default_root_dir" in settings} | settings
    callbacks = [callback, *settings.pop("callbacks", [])]
    return pl.Trainer(accelerator="cpu", devices=1, callbacks=callbacks, **settings)


def loader(number=32):
    return DataLoader(dataset(number), 8)


def measured(model, data=None):
    """The scalings of the first two batches, measured without any trainer."""
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
    G = sgs.update(data or loader(), batches=2)
    sgs.detach()
    return G


def by_hand(model, epochs, *, accumulate=1, clip=None, apply="gradient", updates=(1, 2), autocast=False):
    """The training that the callback is to bring about."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    G = {}
    for epoch in range(epochs):
        if epoch in updates:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                G = measured(model)
        optimizer.zero_grad()
        for number, batch in enumerate(loader(), start=1):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(model, batch) / accumulate
            loss.backward()
            if number % accumulate == 0:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                step_by_hand_(model, optimizer, G, apply)
                optimizer.zero_grad()
    return model


class TestTraining:
    @pytest.mark.parametrize("apply", ["gradient", "update"])
    @pytest.mark.parametrize("extra", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}])
    def test_as_by_hand(self, apply, extra):
        module = Module()
        twin = copy.deepcopy(module.net)
        callback = SpatialGradientScalingCallback(every=1, apply=apply)
        assert callback.scaling is None
        trainer(callback, max_epochs=3, **extra).fit(module, loader())
        by_hand(
            twin,
            3,
            accumulate=extra.get("accumulate_grad_batches", 1),
            clip=extra.get("gradient_clip_val"),
            apply=apply,
        )
        assert close_weights(module.net, twin, UPDATES_ALIKE)
        assert callback.scaling.num_updates == 2
        assert list(callback.scaling.scalings) == ["net.first", "net.wide", "net.last"]

    def test_in_the_precision_of_the_trainer(self):
        module = Module()
        twin = copy.deepcopy(module.net)
        trainer(SpatialGradientScalingCallback(every=1), max_epochs=3, precision="bf16-mixed").fit(module, loader())
        by_hand(twin, 3, autocast=True)
        assert close_weights(module.net, twin, BFLOAT16_ALIKE)

    def test_in_double_precision(self):
        module = Module()
        callback = SpatialGradientScalingCallback(warmup=0)
        trainer(callback, max_epochs=1, precision="64-true").fit(module, loader())
        assert callback.scaling.scalings["net.first"].dtype == torch.float64
        assert callback.scaling.num_updates == 1

    def test_settings_reach_the_scaling(self):
        callback = SpatialGradientScalingCallback(k=3, measure=None, scalings=scaling_from_ratios(2, 3))
        trainer(callback, max_epochs=1).fit(Module(), loader())
        assert callback.scaling.k == 3
        torch.testing.assert_close(callback.scaling.scalings["net.first"], scaling_from_ratios(2, 3).float())

    def test_the_transfer_hooks_of_the_module_are_passed(self):
        class Doubling(Module):
            def on_before_batch_transfer(self, batch, dataloader_idx):
                return batch[0].clamp(max=0.6), batch[1]

            def on_after_batch_transfer(self, batch, dataloader_idx):
                return batch[0].flip(2) ** 2, batch[1]

        module = Doubling()
        twin = copy.deepcopy(module.net)
        callback = SpatialGradientScalingCallback(warmup=0)
        trainer(callback, max_epochs=1).fit(module, loader())
        expected = measured(twin, [(x.clamp(max=0.6).flip(2) ** 2, y) for x, y in loader()][:2])
        assert torch.equal(callback.scaling.scalings["net.first"], expected["first"])

    def test_several_loaders(self):
        class TwoLoaders(Module):
            def training_step(self, batch, batch_idx):
                return loss_of(self, batch["labelled"]) + 0 * self(batch["other"][0]).sum()

        module = TwoLoaders()
        twin = copy.deepcopy(module.net)
        callback = SpatialGradientScalingCallback(warmup=0, forward=lambda module, batch: module(batch["labelled"][0]))
        trainer(callback, max_epochs=1).fit(module, {"labelled": loader(), "other": loader(64)})
        assert torch.equal(callback.scaling.scalings["net.first"], measured(twin)["first"])

    def test_several_optimizers(self):
        class TwoOptimizers(Module):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                first, second = self.optimizers()
                for optimizer in (first, second):
                    optimizer.zero_grad()
                self.manual_backward(loss_of(self, batch))
                first.step()
                if batch_idx % 2:
                    second.step()

            def configure_optimizers(self):
                return optimizers_of(self.net)

        def optimizers_of(net):
            late = [*net.last.parameters(), *net.head.parameters()]
            early = [p for p in net.parameters() if not any(p is q for q in late)]
            return torch.optim.SGD(early, lr=0.1), torch.optim.Adam(late, lr=0.01)

        module = TwoOptimizers()
        twin = copy.deepcopy(module.net)
        callback = SpatialGradientScalingCallback(warmup=0, apply="auto")
        trainer(callback, max_epochs=1).fit(module, loader())

        G = measured(twin)
        late = {"last": G.pop("last")}
        first, second = optimizers_of(twin)
        for number, batch in enumerate(loader()):
            twin.zero_grad()
            loss_of(twin, batch).backward()
            step_by_hand_(twin, first, G, "gradient")
            if number % 2:
                step_by_hand_(twin, second, late, "update")
        assert close_weights(module.net, twin, UPDATES_ALIKE)

    def test_the_trainer_of_the_older_package(self):
        older = pytest.importorskip("pytorch_lightning")

        class OldModule(older.LightningModule):
            forward, training_step = Module.forward, Module.training_step
            configure_optimizers = Module.configure_optimizers

            def __init__(self):
                super().__init__()
                self.net = TinyNet()

        module = OldModule()
        twin = copy.deepcopy(module.net)
        callbacks = [SpatialGradientScalingCallback(every=1)]
        older.Trainer(accelerator="cpu", devices=1, max_epochs=3, callbacks=callbacks, **QUIET).fit(module, loader())
        by_hand(twin, 3)
        assert close_weights(module.net, twin, UPDATES_ALIKE)


class Resumable(DataLoader):
    """In another order each epoch, which Lightning tells it, and able to go on in the middle of one."""

    def __init__(self):
        super().__init__(dataset(), 8, sampler=DistributedSampler(dataset(), num_replicas=1, rank=0, shuffle=True))
        self.position = self.start = 0

    def __iter__(self):
        start, self.start = self.start, 0
        for self.position, batch in enumerate(super().__iter__(), start=1):
            if self.position > start:
                yield batch

    def state_dict(self):
        return {"start": self.position % len(self)}

    def load_state_dict(self, state):
        self.start = state["start"]


def fit_resumable(folder, *, until=4, resume=None, seed=0):
    torch.manual_seed(seed)
    module, callback = Module(), SpatialGradientScalingCallback(every=1)
    steps = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    epochs = pl.callbacks.ModelCheckpoint(
        folder, every_n_epochs=1, save_on_train_epoch_end=True, save_top_k=-1, filename="{epoch}"
    )
    fit = trainer(callback, max_epochs=until, default_root_dir=folder, callbacks=[steps, epochs])
    fit.fit(module, Resumable(), ckpt_path=resume)
    return module, callback


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training run of 4 epochs with 4 steps each, and the folder with its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    return *fit_resumable(folder), folder


class TestCheckpoints:
    @pytest.mark.bits
    @pytest.mark.parametrize("place", ["step=3", "step=4", "step=6", "step=8", "step=11", "epoch=0", "epoch=2"])
    def test_resume_is_bit_exact(self, tmp_path, whole, place):
        whole, callback, folder = whole
        resumed, again = fit_resumable(tmp_path, resume=folder / f"{place}.ckpt", seed=99)
        assert same_weights(whole, resumed)
        assert callback.scaling.num_updates == again.scaling.num_updates == 3
        assert same_matrices(callback.scaling.scalings, again.scaling.scalings)
        assert same_matrices(callback.scaling.dependence, again.scaling.dependence)

    def test_checkpoints_hold_nothing_but_tensors_and_numbers(self, tmp_path):
        _, callback = fit_resumable(tmp_path, until=2)
        state = torch.load(tmp_path / "step=8.ckpt", weights_only=True)["callbacks"]["SpatialGradientScalingCallback"]
        assert torch.equal(state["scaling"]["scalings"]["net.last"], callback.scaling.scalings["net.last"])
        assert state["scaling"]["num_updates"] == 1
        assert state["updated_epoch"] == 1

    def test_a_checkpoint_without_scaling(self, tmp_path):
        plain = trainer(pl.Callback(), max_epochs=1)
        plain.fit(Module(), loader())
        plain.save_checkpoint(tmp_path / "plain.ckpt")
        with pytest.warns(UserWarning, match="written without spatial gradient scaling"):
            fit_resumable(tmp_path, until=2, resume=tmp_path / "plain.ckpt")

    def test_a_checkpoint_of_another_architecture(self, tmp_path):
        callback = SpatialGradientScalingCallback()
        scaling = {"scalings": {"net.other": torch.ones(3, 3)}, "dependence": {}, "num_updates": 1}
        callback.load_state_dict({"scaling": scaling, "updated_epoch": 1, "seed": 0})
        with pytest.raises(ValueError, match=r"another architecture: missing net\.first"):
            trainer(callback, max_epochs=1).fit(Module(), loader())
        with pytest.raises(ValueError, match="Not a state of spatial gradient scaling"):
            callback.load_state_dict({"weights": 1})

    def test_fitting_on_keeps_the_scalings(self):
        module, callback = Module(), SpatialGradientScalingCallback(every=9)
        fit = trainer(callback, max_epochs=2)
        fit.fit(module, loader())
        G = callback.scaling.scalings
        fit.fit_loop.max_epochs = 4
        fit.fit(module, loader())
        assert callback.scaling.num_updates == 1
        assert all(torch.equal(value, G[name]) for name, value in callback.scaling.scalings.items())

    def test_no_state_before_the_first_training(self):
        assert SpatialGradientScalingCallback().state_dict() == {}


class TestBeginningAndEnd:
    def test_detached_at_the_end(self):
        callback = SpatialGradientScalingCallback(warmup=0)
        fit = trainer(callback, max_epochs=1)
        fit.fit(Module(), loader())
        assert not fit.optimizers[0]._optimizer_step_pre_hooks
        assert "detached" in repr(callback.scaling)

    def test_detached_after_an_error(self):
        class Failing(Module):
            def on_train_batch_end(self, *args):
                raise OSError("the disk is gone")

        callback, module = SpatialGradientScalingCallback(), Failing()
        with pytest.raises(OSError, match="disk"):
            trainer(callback, max_epochs=1).fit(module, loader())
        assert "detached" in repr(callback.scaling)
        assert not module.net.first.weight._post_accumulate_grad_hooks

    @pytest.mark.parametrize("limit", [{"max_epochs": 1}, {"max_steps": 3, "max_epochs": -1}])
    def test_a_training_that_ends_before_its_first_update(self, limit):
        with pytest.warns(NoEffectWarning, match="first before epoch 1"):
            trainer(SpatialGradientScalingCallback(), **limit).fit(Module(), loader())

    def test_a_trial_run_is_not_scolded(self):
        trainer(SpatialGradientScalingCallback(), fast_dev_run=True).fit(Module(), loader())

    def test_a_number_of_steps_that_ends_within_an_epoch(self):
        module = Module()
        twin = copy.deepcopy(module.net)
        trainer(SpatialGradientScalingCallback(every=1), max_steps=6, max_epochs=-1).fit(module, loader())
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        G = {}
        for number, batch in enumerate([*loader(), *loader()][:6]):
            if number == 4:
                G = measured(twin)
            optimizer.zero_grad()
            loss_of(twin, batch).backward()
            step_by_hand_(twin, optimizer, G, "gradient")
        assert close_weights(module.net, twin, UPDATES_ALIKE)

    def test_a_module_without_forward(self):
        class Headless(pl.LightningModule):
            configure_optimizers = Module.configure_optimizers

            def __init__(self):
                super().__init__()
                self.net = TinyNet()

            def training_step(self, batch, batch_idx):
                return loss_of(self.net, batch)

        with pytest.raises(ValueError, match=r"Headless has no method `forward`.*pass forward="):
            trainer(SpatialGradientScalingCallback(), max_epochs=1).fit(Headless(), loader())
        module = Headless()
        twin = copy.deepcopy(module.net)
        callback = SpatialGradientScalingCallback(every=1, forward=lambda module, batch: module.net(batch[0]))
        trainer(callback, max_epochs=3).fit(module, loader())
        by_hand(twin, 3)
        assert close_weights(module.net, twin, UPDATES_ALIKE)

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"k": -1}, ValueError, "Invalid k: -1"),
            ({"bins": 1}, ValueError, "Invalid bins: 1"),
            ({"batches": 0}, ValueError, "Invalid batches: 0"),
            ({"evry": 2}, TypeError, "evry"),
        ],
    )
    def test_wrong_settings_are_noticed_at_once(self, settings, error, message):
        with pytest.raises(error, match=message):
            SpatialGradientScalingCallback(**settings)


class TestWithoutLightning:
    @pytest.fixture
    def _unloaded(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "spatialgrad.integrations.lightning", raising=False)
        for name in ("lightning", "lightning.pytorch"):
            monkeypatch.setitem(sys.modules, name, None)

    @pytest.mark.usefixtures("_unloaded")
    def test_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
        with pytest.raises(ModuleNotFoundError, match=r"needs Lightning.*pip install .*\[lightning\]'"):
            importlib.import_module("spatialgrad.integrations.lightning")

    @pytest.mark.usefixtures("_unloaded")
    def test_the_older_package_will_do(self):
        older = pytest.importorskip("pytorch_lightning")
        module = importlib.import_module("spatialgrad.integrations.lightning")
        assert issubclass(module.SpatialGradientScalingCallback, older.Callback)
