"""Two processes train as one does, and all that holds for one holds for two."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from spatialgrad.data import eval_batches
from spatialgrad.train import Run, load_model
from spatialgrad.train.checkpoint import read_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.tasks.classification import Classification, load_images
from support.common import python_environment
from support.training import (
    Process,
    assert_same_run,
    at_step,
    codes,
    exit_code_of_training,
    free_port,
    quietly,
    start_ranks,
    stop_after_seven_steps,
    tiny,
    wait_for,
    weights,
)

GROUP_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
UNEVEN = {"limit": 149}  # the last batch of an epoch has 21 images: 10 for one process, 11 for the other


def plain_network():
    """Without BatchNorm and dropout, which see only their own process's images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 10)),
    )


def train_plain(config):
    Classification.build_model = lambda self, **options: plain_network()
    quietly(config)
    return 0


def test_two_processes_keep_the_same_books_as_one(tmp_path):
    options = {"data": UNEVEN, "optimizer": {"lr": 0.1}}
    assert Process(tiny(tmp_path / "one", "sgs", **options), function=train_plain).wait()[0] == 0
    assert codes(start_ranks(tiny(tmp_path / "two", "sgs", **options), train_plain)) == [0, 0]
    one, two = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["step"] for line in two] == [line["step"] for line in one] == [5, 10, 15]
    for a, b in zip(one, two, strict=True):
        assert b["train_accuracy"] == a["train_accuracy"]
        assert b["test_accuracy"] == a["test_accuracy"]
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-5)
        assert b["test_loss"] == pytest.approx(a["test_loss"], rel=1e-5)
        assert round(149 * b["train_accuracy"], 6) == round(149 * b["train_accuracy"])
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, rtol=1e-4, atol=1e-5)
    one, two = (read_lines(tmp_path / name / "scalings.jsonl") for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        for layer, G in a["scalings"].items():
            torch.testing.assert_close(torch.tensor(b["scalings"][layer]), torch.tensor(G), rtol=0.02, atol=0.02)


def test_what_is_reported_is_what_is_saved(tmp_path):
    config = tiny(tmp_path, "dyrep", data={**UNEVEN, "test_limit": 99})
    assert codes(start_ranks(config)) == [0, 0]
    model, right = load_model(tmp_path), 0
    with torch.no_grad():
        for images, labels in eval_batches(load_images(config.data), 64):
            right += int((model(images).argmax(1) == labels).sum())
    result = Run.open(tmp_path).result
    assert result.value == pytest.approx(right / 99)


def test_stopped_together_and_resumed(tmp_path):
    options = {"data": UNEVEN, "epochs": 6}
    assert codes(start_ranks(tiny(tmp_path / "whole", "dyrep", **options))) == [0, 0]
    config = tiny(tmp_path / "run", "dyrep", **options)
    processes = start_ranks(config, exit_code_of_training)
    wait_for(lambda: len(read_lines(tmp_path / "run" / "metrics.jsonl")) > 1)
    processes[1].signal(signal.SIGTERM)  # one of them is enough
    assert codes(processes) == [143, 143]
    step = read_checkpoint(tmp_path / "run" / "checkpoint.pt")["step"]
    assert 10 <= step < 30
    assert codes(start_ranks(config)) == [0, 0]
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_another_number_of_processes_is_another_run(finished):
    processes = start_ranks(tiny(finished, "sgs"), exit_code_of_training)
    found = [process.wait() for process in processes]
    assert [code for code, _, _ in found] == [78, 78]
    said = [error for _, _, error in found]
    assert "number of processes: 1 there, 2 requested" in said[0]
    assert said[1] == ""  # once is enough


def test_a_loss_that_is_no_number_ends_both(tmp_path):
    processes = start_ranks(tiny(tmp_path, optimizer={"lr": 1e30}), exit_code_of_training)
    assert codes(processes) == [3, 3]


@pytest.mark.parametrize("method", ["sgs", pytest.param("dbb", marks=pytest.mark.slow)])
def test_sharded(method, tmp_path):
    """FSDP: the same training as with DDP, saved whole, and resumed bit for bit."""
    sharded = {"machine": {"strategy": "fsdp"}, "data": UNEVEN}
    same_layout = {"machine": {"channels_last": False}, "data": UNEVEN}
    assert codes(start_ranks(tiny(tmp_path / "ddp", method, **same_layout))) == [0, 0]
    assert codes(start_ranks(tiny(tmp_path / "whole", method, **sharded))) == [0, 0]
    ddp, fsdp = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("ddp", "whole"))
    for a, b in zip(ddp, fsdp, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-3)
    config = tiny(tmp_path / "run", method, **sharded, budget={"checkpoint_steps": 7})
    assert codes(start_ranks(config, stop_after_seven_steps)) == [143, 143]
    assert codes(start_ranks(config)) == [0, 0]
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert load_model(tmp_path / "run") is not None


@pytest.mark.parametrize(
    ("method", "machine", "message"),
    [
        ("dyrep", {"strategy": "fsdp"}, "dyrep changes the network during training, which fsdp does not support"),
        ("sgs", {"strategy": "fsdp", "channels_last": True}, "torch cannot shard channels-last kernels"),
        ("lemma", {}, "--method lemma trains in one process only"),
    ],
)
def test_what_several_processes_cannot_do(method, machine, message, tmp_path):
    processes = start_ranks(tiny(tmp_path / "run", method, machine=machine), exit_code_of_training)
    (first, _, said), (second, *_) = [process.wait() for process in processes]
    assert (first, second) == (2, 2)
    assert message in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "fabric"])
def test_the_real_launchers(launcher, tmp_path):
    if launcher == "fabric" and os.cpu_count() < 2:
        pytest.skip("Fabric starts at most as many processes as there are cores")
    port = str(free_port())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port, "-m"]
    start_of = {"torchrun": [*torchrun, "spatialgrad"], "fabric": [sys.executable, "-m", "spatialgrad"]}
    command = [
        *(*start_of[launcher], "train", "--recipe", "pocket", "--model.width", "0.0625", "--data.limit", "128"),
        *("--data.test-limit", "100", "--epochs", "2", "--machine.threads", "1", "--machine.accelerator", "cpu"),
        *("--out", str(tmp_path / "run"), *(["--machine.devices", "2"] if launcher == "fabric" else [])),
    ]
    # Without what Lightning, in this process, may have left for a group of its own.
    environment = {name: value for name, value in python_environment().items() if name not in GROUP_VARIABLES}
    environment["MASTER_PORT"] = port
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "2 × cpu" in done.stdout
    assert done.stdout.count("epoch 2/2") == 1
    assert Run.open(tmp_path / "run").result.steps == 2


def interrupt_second_while_starting(config):
    """Ctrl-C in one process before it has met the other."""
    from spatialgrad.train import loop

    class Interrupted(loop.Runtime):
        def __init__(self, config):
            if os.environ["RANK"] == "1":
                signal.raise_signal(signal.SIGINT)
            super().__init__(config)

    loop.Runtime = Interrupted
    return exit_code_of_training(config)


def test_ctrl_c_while_one_process_starts(tmp_path):
    """The other one would wait for it, for half an hour."""
    config = tiny(tmp_path / "run", epochs=200)
    assert codes(start_ranks(config, interrupt_second_while_starting)) == [130, 130]
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["step"] == 5


def stop_in_evaluation(config):
    """SIGTERM on one process while the first epoch is evaluated."""
    evaluate, calls = Classification.evaluate, []

    def noticed(self, model, batch):
        calls.append(batch)
        if len(calls) == 2 and os.environ["RANK"] == "1":
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, model, batch)

    Classification.evaluate = noticed
    code = exit_code_of_training(config)
    assert 10 <= len(calls) < 25
    return code


def test_a_signal_does_not_wait_for_the_end_of_an_evaluation(tmp_path):
    config = tiny(tmp_path / "run", data={"limit": 20, "batch_size": 4})  # 25 test batches
    assert codes(start_ranks(config, stop_in_evaluation)) == [143, 143]
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["step"] == 5
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_ctrl_c_on_one_process_stops_both(tmp_path):
    config = tiny(tmp_path / "run", "sgs", epochs=200)
    processes = start_ranks(config, exit_code_of_training)
    wait_for(lambda: len(read_lines(tmp_path / "run" / "metrics.jsonl")) > 1)
    processes[0].signal(signal.SIGINT)
    found = [process.wait() for process in processes]
    assert [code for code, _, _ in found] == [130, 130]
    assert f"spatialgrad resume {tmp_path / 'run'}" in found[0][2]
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["step"] >= 10


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_ends_at_once_does_not_hang_the_other(rank, tmp_path):
    """A second Ctrl-C, as here, or any other sudden end."""
    config = tiny(tmp_path / "run", "sgs", epochs=200, budget={"checkpoint_steps": 5})
    processes = start_ranks(config, lose_one if rank == 1 else lose_first)
    found = [process.wait(timeout=60) for process in processes]
    assert found[rank][0] == 130
    assert "interrupted" in found[rank][2]
    code, _, error = found[1 - rank]
    assert code == 1
    # Only the first process says it, as all others may.
    assert ("another process of this training has ended" in error) == (rank == 1)
    assert "Traceback" not in error
    assert codes(start_ranks(tiny(tmp_path / "run", "sgs", epochs=200), stop_after_seven_steps)) == [143, 143]


def lose(rank, config):
    def interrupt_twice(trainer):
        if os.environ["RANK"] == rank:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with at_step(7, interrupt_twice):
        return exit_code_of_training(config)


def lose_first(config):
    return lose("0", config)


def lose_one(config):
    return lose("1", config)
