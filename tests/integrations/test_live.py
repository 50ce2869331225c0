"""Live updates under the callbacks, against trainings written by hand; and resuming in the middle of an update."""

import copy
import importlib

import pytest
import torch

from integrations.test_lightning import Resumable, loader, trainer
from integrations.test_transformers import start
from integrations.test_transformers import train as train_transformers
from spatialgrad import Live, NoEffectWarning
from support.common import (
    MATRICES_ALIKE,
    UPDATES_ALIKE,
    TinyNet,
    close_matrices,
    close_weights,
    dataset,
    loss_of,
    same_matrices,
    same_weights,
)
from support.lightning_module import IGNORED_WARNINGS, Module, pl
from support.live import SCHEDULE, hooks_on, train_by_hand

LightningCallback = importlib.import_module("spatialgrad.integrations.lightning").SpatialGradientScalingCallback
TransformersCallback = importlib.import_module("spatialgrad.integrations.transformers").SpatialGradientScalingCallback

pytestmark = pytest.mark.filterwarnings(*IGNORED_WARNINGS)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class TestLightning:
    def fit(self, folder, *, resume=None, seed=0):
        torch.manual_seed(seed)
        module, callback = Module(), LightningCallback(live=SCHEDULE)
        steps = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        fit = trainer(callback, max_epochs=3, default_root_dir=folder, callbacks=[steps])
        fit.fit(module, Resumable(), ckpt_path=resume)
        return module, callback

    def test_as_by_hand(self):
        module = Module()
        twin = copy.deepcopy(module.net)
        callback = LightningCallback(live=SCHEDULE)
        trainer(callback, max_epochs=2).fit(module, loader())
        by_hand = train_by_hand(twin, sgd(twin), [*loader(), *loader()])
        assert callback.scaling.num_updates == 1
        scalings = {name.removeprefix("net."): G for name, G in callback.scaling.scalings.items()}
        assert close_matrices(scalings, by_hand, MATRICES_ALIKE)
        assert close_weights(module.net, twin, UPDATES_ALIKE)
        assert hooks_on(module) == 0

    def test_validation_in_between_is_not_observed(self):
        class Validating(Module):
            def validation_step(self, batch, batch_idx):
                loss_of(self, (100 * batch[0], batch[1]))

        results = []
        for kind, extra in ((Module, {}), (Validating, {"val_dataloaders": loader()})):
            torch.manual_seed(0)
            callback = LightningCallback(live=SCHEDULE)
            trainer(callback, max_epochs=2, val_check_interval=1).fit(kind(), loader(), **extra)
            results.append(callback.scaling.scalings)
        assert same_matrices(*results)

    def test_a_module_without_forward_will_do(self):
        class Headless(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = TinyNet()

            def training_step(self, batch, batch_idx):
                return loss_of(self.net, batch)

            def configure_optimizers(self):
                return sgd(self)

        callback = LightningCallback(live=SCHEDULE)
        trainer(callback, max_epochs=2).fit(Headless(), loader())
        assert callback.scaling.num_updates == 1

    @pytest.mark.bits
    def test_resuming(self, tmp_path):
        whole, callback = self.fit(tmp_path / "whole")
        assert callback.scaling.num_updates == 2
        for step in (5, 7):  # inside of an update, which begins again, and between two
            resumed, again = self.fit(tmp_path / str(step), resume=tmp_path / f"whole/step={step}.ckpt", seed=99)
            assert again.scaling.num_updates == 2 - (step == 5)
            assert same_weights(whole, resumed) == (step == 7)
            assert same_matrices(callback.scaling.scalings, again.scaling.scalings) == (step == 7)

    def test_a_training_that_ends_before_its_first_update(self):
        with pytest.warns(NoEffectWarning, match=r"begins after step 100; set live=Live\(at"):
            trainer(LightningCallback(live=True), max_epochs=1).fit(Module(), loader())


EXACT = {"max_grad_norm": 0, "accelerator_config": {"use_seedable_sampler": True}}


class TestTransformers:
    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_as_by_hand(self, tmp_path, accumulate):
        model, twin = start()
        callback = TransformersCallback(live=Live(at=(2,), every=20, batches=2))
        train_transformers(
            tmp_path,
            model,
            callback,
            num_train_epochs=2 * accumulate,
            gradient_accumulation_steps=accumulate,
            **EXACT,
        )
        assert callback.scaling.num_updates == 1
        assert hooks_on(model) == 0
        if accumulate == 1:
            data = dataset()
            by_hand = train_by_hand(twin, sgd(twin), [data[indices] for indices in model.shown])
            scalings = {name.removeprefix("net."): G for name, G in callback.scaling.scalings.items()}
            assert close_matrices(scalings, by_hand, MATRICES_ALIKE)
            assert close_weights(model.net, twin, UPDATES_ALIKE)

    @pytest.mark.bits
    def test_resuming(self, tmp_path):
        settings = {**EXACT, "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1}
        torch.manual_seed(0)
        callback = TransformersCallback(live=SCHEDULE)
        whole, _ = train_transformers(tmp_path / "whole", callback=callback, **settings)
        assert callback.scaling.num_updates == 2
        for step in (5, 7):  # inside of an update, which begins again, and between two
            torch.manual_seed(99)
            again = TransformersCallback(live=SCHEDULE)
            folder = tmp_path / "whole" / f"checkpoint-{step}"
            resumed, _ = train_transformers(tmp_path / str(step), callback=again, resume=folder, **settings)
            assert again.scaling.num_updates == 2 - (step == 5)
            assert same_weights(whole, resumed) == (step == 7)
            assert same_matrices(callback.scaling.scalings, again.scaling.scalings) == (step == 7)


@pytest.mark.parametrize("callback", [LightningCallback, TransformersCallback])
def test_settings_that_do_not_go_together(callback):
    with pytest.raises(ValueError, match=r"live=Live\(batches=5\)"):
        callback(live=True, batches=5)
    with pytest.raises(ValueError, match="epochs"):
        callback(live=True, every=1)
