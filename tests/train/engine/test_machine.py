"""Devices: those that are there, and an error that says so for others."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from spatialgrad.train import ConfigError, MachineConfig
from spatialgrad.train.runtime import Runtime
from support.common import python_environment
from support.training import quietly, tiny


def test_more_processes_than_cores_are_refused_before_any_is_started(tmp_path):
    cores = os.cpu_count()
    with pytest.raises(
        ConfigError, match=f"--machine.devices {50 * cores}: this machine has {cores} CPU cores"
    ) as caught:
        quietly(tiny(tmp_path / "run", machine={"devices": 50 * cores}))
    assert f"use at most {cores}" in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_more_gpus_than_there_are(strategy, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"--machine\.devices 3: this machine has 2 cuda devices; use at most 2"):
        Runtime(MachineConfig(accelerator="cuda", devices=3, strategy=strategy))


@pytest.mark.bits
@pytest.mark.parametrize("threads", [1, 2])
def test_narrow_strided_convolutions_train_on_any_processor(threads, tmp_path):
    """In the channels-last format, which these images are in, PyTorch may crash: with AVX2, or with several threads."""
    code = (
        "from pathlib import Path; from spatialgrad.train import *\n"
        f"config = TrainConfig(model=ModelConfig(name='resnet18', width=1/16), out=Path({str(tmp_path)!r}),\n"
        "    data=DataConfig(name='shapes-mini', limit=256, test_limit=64, batch_size=32, cutout=0),\n"
        "    method=MethodConfig(name='baseline'), budget=BudgetConfig(epochs=1),\n"
        f"    machine=MachineConfig(accelerator='cpu', threads={threads}))\n"
        "print(0 <= train(config).value <= 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=python_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


def test_the_format_follows_the_network():
    narrow, wide = nn.Conv2d(4, 4, 1, stride=2), nn.Conv2d(16, 4, 1, stride=2)
    automatic = Runtime(MachineConfig(accelerator="cpu"))
    assert not automatic.uses_channels_last(narrow)
    assert automatic.uses_channels_last(wide)
    # One that was in the format, and has grown such a layer, leaves it.
    grown = nn.Sequential(nn.Conv2d(3, 4, 3), narrow).to(memory_format=torch.channels_last)
    automatic.place_(grown)
    assert grown[0].weight.is_contiguous()
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    laid_out, labels = automatic.laid_out((images, [0, 1]))
    assert laid_out.is_contiguous()
    assert labels == [0, 1]
    automatic.place_(nn.Sequential(wide))
    assert automatic.laid_out((images,))[0] is images
    demanded = Runtime(MachineConfig(accelerator="cpu", channels_last=True))
    assert demanded.uses_channels_last(wide)
    with pytest.raises(ConfigError, match=r"corrupts memory in the gradient of 1 .*--machine.channels-last auto"):
        demanded.uses_channels_last(grown)
    assert not Runtime(MachineConfig(accelerator="cpu", channels_last=False)).uses_channels_last(wide)


@pytest.mark.parametrize("accelerator", ["cuda", "mps"])
def test_no_such_device(accelerator, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(ConfigError, match="--machine"):
        Runtime(MachineConfig(accelerator=accelerator))
    with pytest.raises(ConfigError, match=f"has 0 {accelerator} devices; use --machine.accelerator cpu"):
        Runtime(MachineConfig(accelerator=accelerator, devices=1))
