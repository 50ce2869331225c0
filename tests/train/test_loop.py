"""The loop itself: against a loop written out by hand, against a fixed curve, and when something goes wrong."""

import errno
import json
import math
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import MissingDataError, eval_batches, train_batches
from spatialgrad.data.rng import generator_for
from spatialgrad.models import create_model
from spatialgrad.reparam import DBB, merge, reparameterize_
from spatialgrad.train import (
    DataConfig,
    DivergedError,
    Run,
    StorageError,
    load_model,
)
from spatialgrad.train.checkpoint import read_checkpoint
from spatialgrad.train.jsonfiles import JsonLines, read_lines
from spatialgrad.train.tasks.classification import Classification, load_images
from support.compiling import needs_compiler
from support.training import (
    Process,
    assert_resumes,
    assert_same_run,
    at_step,
    kill,
    quietly,
    tiny,
    train_quietly,
    wait_for,
    weights,
)


def by_hand(config):
    """The same training without the engine: the network, and the metrics of each epoch."""
    dataset = load_images(config.data)
    augmentation = replace(dataset.augmentation, cutout=config.data.cutout)
    torch.manual_seed(config.seed)
    model = create_model("vgg11", num_classes=10, width=1 / 16, in_channels=1)
    if config.method.name == "dbb":
        reparameterize_(model, DBB())
    model = model.to(memory_format=torch.channels_last)  # what the engine chooses on a CPU
    settings = config.optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=5e-4)
    sgs = SpatialGradientScaling(model, optimizer, every=1) if config.method.name == "sgs" else None
    step, curve, steps = 0, [], 5 * config.budget.epochs
    for epoch in range(config.budget.epochs):
        batches = train_batches(dataset, 32, seed=config.seed, epoch=epoch, augmentation=augmentation)
        if sgs is not None and epoch >= 1:
            sgs.update(batches, batches=2)
        model.train()
        loss_sum = right = 0.0
        for images, labels in batches:
            torch.manual_seed(generator_for("step", config.seed, step, 0).initial_seed())
            optimizer.param_groups[0]["lr"] = settings.lr * (1 + math.cos(math.pi * step / steps)) / 2
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            if settings.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            loss_sum += loss.item() * len(labels)
            right += int((logits.argmax(1) == labels).sum())
        model.eval()
        with torch.no_grad():
            tests = sum(int((model(x).argmax(1) == y).sum()) for x, y in eval_batches(dataset, 64))
        curve.append({"train_loss": loss_sum / 150, "train_accuracy": right / 150, "test_accuracy": tests / 100})
    return model, curve


def small_network():
    """With all that a large one has, and compiled in seconds."""
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        *(torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Dropout()),
        *(torch.nn.AdaptiveAvgPool2d(3), torch.nn.Flatten(), torch.nn.Linear(72, 10)),
    )


@pytest.mark.parametrize(("method", "clip_norm"), [("baseline", None), ("sgs", None), ("dbb", None), ("sgs", 0.1)])
def test_the_engine_is_the_loop_written_by_hand(method, clip_norm, tmp_path):
    """Gradients are clipped before they are scaled."""
    config = tiny(tmp_path, method, optimizer={"clip_norm": clip_norm})
    quietly(config)
    model, curve = by_hand(config)
    found = weights(tmp_path)
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [{name: line[name] for name in curve[0]} for line in lines] == [pytest.approx(c, rel=1e-9) for c in curve]


def test_fixed_curve(tmp_path):
    """A refactoring must not move it. Other processors round otherwise, so the last digits are free."""
    quietly(tiny(tmp_path, "sgs", epochs=4, data={"cutout": 0}, machine={"channels_last": False}))
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [line["train_loss"] for line in lines] == pytest.approx(CURVE, rel=2e-3)


CURVE = [2.33818, 2.32541, 2.32016, 2.24867]


def test_what_is_in_the_folder(tmp_path):
    result, said = quietly(tiny(tmp_path, "sgs"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("config.json", "environment.json", "metrics.jsonl", "scalings.jsonl", "timings.jsonl"),
        *("checkpoint.pt", "result.json", "run.lock"),
    }
    assert Run.open(tmp_path).config == tiny(tmp_path, "sgs")
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert {"python", "commit", "cpu", "cores", "threads", "device", "system"} <= set(environment)
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [(line["epoch"], line["step"]) for line in lines] == [(0, 5), (1, 10), (2, 15)]
    assert set(lines[0]) == {"epoch", "step", "lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy"}
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["accuracy"] == lines[-1]["test_accuracy"] == result.value
    assert result.best == max(line["test_accuracy"] for line in lines)
    assert Run.open(tmp_path).result == result
    model = load_model(tmp_path)
    assert result.parameters == sum(p.numel() for p in model.parameters())
    assert result.macs > 0
    assert result.peak_memory_bytes > 50e6
    assert 0 < result.update_seconds < result.seconds
    assert str(tmp_path) in said
    assert f"spatialgrad resume {tmp_path}" in said


def test_every_scaling_of_every_update_is_kept(tmp_path):
    quietly(tiny(tmp_path, "sgs"))
    lines = read_lines(tmp_path / "scalings.jsonl")
    assert [(line["epoch"], line["step"], line["update"]) for line in lines] == [(1, 5, 1), (2, 10, 2)]
    model = create_model("vgg11", width=1 / 16, in_channels=1)
    convolutions = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d)]
    for line in lines:
        assert list(line["scalings"]) == convolutions
        for G in line["scalings"].values():
            assert torch.tensor(G).shape == (3, 3)
            assert torch.tensor(G).mean() == pytest.approx(1, abs=1e-5)
    assert lines[0]["scalings"] != lines[1]["scalings"]


def test_tested_now_and_then_and_at_the_end(tmp_path):
    quietly(tiny(tmp_path, epochs=5, budget={"evaluate_every": 2}))
    tested = ["test_loss" in line for line in read_lines(tmp_path / "metrics.jsonl")]
    assert tested == [False, True, False, True, True]


def test_training_images_are_limited_and_held_out(tmp_path):
    data = DataConfig(name="fashion-mnist-mini", limit=100, test_limit=50, validation=0.2)
    dataset = load_images(data)
    assert (len(dataset.train), len(dataset.test)) == (100, 50)
    assert torch.bincount(dataset.train.labels).tolist() == [10] * 10
    whole = load_images(DataConfig(name="fashion-mnist-mini", validation=0.2))
    assert (len(whole.train), len(whole.test)) == (4000, 1000)
    official = load_images(DataConfig(name="fashion-mnist-mini"))
    pixels = {row.numpy().tobytes() for row in official.train.images}
    assert all(row.numpy().tobytes() in pixels for row in whole.test.images)


# When something goes wrong.


def test_a_loss_that_is_no_number(tmp_path):
    config = tiny(tmp_path, optimizer={"lr": 1e30}, budget={"checkpoint_steps": 1})
    with pytest.raises(DivergedError, match=r"the (loss|weights) became non-finite") as caught:
        quietly(config)
    assert caught.value.exit_code == 3
    assert "--optimizer.lr is 1e+30" in str(caught.value)
    assert not (tmp_path / "result.json").exists()
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        if (tmp_path / name).exists():
            state = read_checkpoint(tmp_path / name)["model"]
            assert all(state[parameter].isfinite().all() for parameter in state)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    """The loss was computed before the step, and is finite."""

    def spoil(trainer):
        assert trainer.sums["loss"].isfinite()
        with torch.no_grad():
            next(trainer.learner.module.parameters()).view(-1)[0] = float("inf")

    config = tiny(tmp_path, budget={"checkpoint_steps": 1})
    with at_step(7, spoil), pytest.raises(DivergedError, match=r"the weights became non-finite at step 7 \(epoch 2\)"):
        quietly(config)
    assert read_checkpoint(tmp_path / "checkpoint.pt")["step"] == 6
    assert read_checkpoint(tmp_path / "checkpoint.previous.pt")["step"] == 5
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        assert all(value.isfinite().all() for value in read_checkpoint(tmp_path / name)["model"].values())


def test_the_best_epoch_need_not_be_the_last(tmp_path, monkeypatch):
    accuracies = {0: 0.3, 1: 0.5, 2: 0.4}
    honest, epochs = Classification.metrics, []

    def given(self, sums):
        """The totals of the test images are those of 100 of them."""
        if int(sums["images"]) != 100:
            return honest(self, sums)
        epochs.append(len(epochs))
        return {**honest(self, sums), "accuracy": accuracies[epochs[-1]]}

    monkeypatch.setattr(Classification, "metrics", given)
    result, said = quietly(tiny(tmp_path))
    assert (result.value, result.best) == (0.4, 0.5)
    assert "accuracy 40.00 % on" in said
    assert "(best epoch 50.00 %)" in said


def test_the_logged_learning_rate_is_that_of_the_last_step(tmp_path):
    quietly(tiny(tmp_path))
    found = [line["lr"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert found == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 15)) / 2 for step in (4, 9, 14)])


def test_the_checkpoint_before_the_loss_was_lost_is_kept(tmp_path, monkeypatch):
    honest = Classification.loss

    def spoilt(self, model, batch):
        spoilt.calls += 1
        loss, sums = honest(self, model, batch)
        return (
            (loss * float("nan"), {**sums, "loss": sums["loss"] * float("nan")}) if spoilt.calls > 7 else (loss, sums)
        )

    spoilt.calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(Classification, "loss", spoilt)
        with pytest.raises(DivergedError, match=r"step 8 \(epoch 2\); the checkpoint of step 7 is intact"):
            quietly(tiny(tmp_path / "run", budget={"checkpoint_steps": 1}))
    quietly(tiny(tmp_path / "run", budget={"checkpoint_steps": 1}))
    quietly(tiny(tmp_path / "whole"))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_data_that_vanished_before_a_resume(tmp_path):
    """The folder is as it was, and goes on when the data are back."""
    quietly(tiny(tmp_path / "whole", epochs=2))
    quietly(tiny(tmp_path / "run", epochs=2))
    (tmp_path / "run" / "result.json").unlink()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    config = tiny(tmp_path / "run", epochs=2)
    with pytest.MonkeyPatch.context() as patch:
        from spatialgrad.data.sets import fashion_mnist

        patch.setattr(fashion_mnist, "MINI", replace(fashion_mnist.MINI, places=[tmp_path / "gone"]))
        with pytest.raises(MissingDataError):
            quietly(config)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_a_second_process_on_the_folder(tmp_path):
    config = tiny(tmp_path, epochs=200)
    first = Process(config, function=train_quietly)
    wait_for((tmp_path / "metrics.jsonl").exists)
    code, _, error = Process("resume", tmp_path).wait()
    assert code == 75
    assert "in use by process" in error
    assert first.running
    first.kill()


def test_the_disk_is_full_when_a_checkpoint_is_written(tmp_path):
    """A real limit of the system on the size of files."""
    quietly(tiny(tmp_path / "whole"))
    size = (tmp_path / "whole" / "checkpoint.pt").stat().st_size
    stopped = Process(tiny(tmp_path / "run", budget={"checkpoint_steps": 2}), function=kill_after_first_checkpoint)
    assert stopped.wait()[0] == -signal.SIGKILL
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    code, _, error = Process("resume", tmp_path / "run", limit_file_size=size // 2).wait()
    assert code == 74
    assert "cannot write" in error
    assert "checkpoint.pt" in error
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))
    assert Process("resume", tmp_path / "run").wait()[0] == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def kill_after_first_checkpoint(config):
    with at_step(3, kill):
        quietly(config)


def test_the_disk_is_full_when_metrics_are_written(tmp_path, monkeypatch):
    append = JsonLines.append

    def full(self, values):
        if values.get("epoch") == 1 and self.path.name == "metrics.jsonl":
            with open(self.path, "ab") as file:
                file.write(b'{"step": 10, "ep')
            raise StorageError(f"cannot write to {self.path}: {errno.ENOSPC}")
        append(self, values)

    with monkeypatch.context() as patch:
        patch.setattr(JsonLines, "append", full)
        with pytest.raises(StorageError):
            quietly(tiny(tmp_path / "run", budget={"checkpoint_steps": 3}))
    quietly(tiny(tmp_path / "run", budget={"checkpoint_steps": 3}))
    quietly(tiny(tmp_path / "whole"))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_can_be_moved(tmp_path):
    quietly(tiny(tmp_path / "a", "dbb", epochs=1))
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert isinstance(load_model(tmp_path / "b"), torch.nn.Module)


def test_the_deployed_network_is_the_merged_one(tmp_path):
    result, _ = quietly(tiny(tmp_path, "dbb"))
    model = load_model(tmp_path)
    assert not any("branches" in name for name, _ in model.named_modules())
    assert result.training_parameters > result.parameters
    assert result.merge_difference < 1e-4
    with torch.no_grad():
        dataset = load_images(tiny(tmp_path).data)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in eval_batches(dataset, 64))
        branched = load_model(tmp_path, merged=False)
        x = next(iter(eval_batches(dataset, 64)))[0]
        torch.testing.assert_close(model(x), branched(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(merge(branched)(x), model(x))
    assert right / 100 == result.value


def test_a_merged_network_that_disagrees_is_not_deployed(tmp_path, monkeypatch):
    from spatialgrad.train import DeployError
    from spatialgrad.train.methods import base

    honest = base.merge_with_report

    def broken(model):
        merged = honest(model)
        torch.nn.init.zeros_(merged.model.classifier[-1].weight)
        return merged

    monkeypatch.setattr(base, "merge_with_report", broken)
    with pytest.raises(DeployError, match="before the branches were merged") as caught:
        quietly(tiny(tmp_path, "dbb", epochs=4, data={"limit": 600, "cutout": 0}))
    assert caught.value.exit_code == 4
    assert (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    "machine",
    [{"channels_last": True}, {"precision": "bf16-mixed"}, {"precision": "64-true"}, {"precision": "bf16-true"}],
    ids=str,
)
def test_layouts_and_precisions_train_and_resume(machine, tmp_path):
    assert_resumes(lambda out: tiny(out, "dyrep", epochs=2, machine=machine), tmp_path, 7)


def test_double_precision_is_that_of_the_loss_as_well(tmp_path, monkeypatch):
    honest, seen = Classification.loss, set()

    def watched(self, model, batch):
        loss, sums = honest(self, model, batch)
        seen.add(loss.dtype)
        return loss, sums

    monkeypatch.setattr(Classification, "loss", watched)
    quietly(tiny(tmp_path, epochs=1, machine={"precision": "64-true"}))
    assert seen == {torch.float64}


@pytest.mark.slow
@needs_compiler
def test_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(Classification, "build_model", lambda self, **options: small_network())
    assert_resumes(lambda out: tiny(out, "sgs", machine={"compile": True}), tmp_path, 7)
    quietly(tiny(tmp_path / "eager", "sgs"))
    curves = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "eager")]
    # Compiled dropout draws other numbers, so the curves are alike but not the same.
    for a, b in zip(*curves, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=0.15)


def test_used_as_a_library_in_a_thread(tmp_path):
    import threading

    results = []
    thread = threading.Thread(target=lambda: results.append(quietly(tiny(tmp_path, epochs=1))))
    thread.start()
    thread.join()
    assert results[0][0].steps == 5
