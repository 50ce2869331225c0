"""Devices that are there, memory layout, and variables of cluster jobs."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from spatialgrad.train import ConfigError, MachineConfig
from spatialgrad.train.runtime import Runtime
from support.common import python_environment
from support.training import quietly, tiny


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_more_gpus_than_there_are(strategy, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"--machine\.devices 3: this machine has 2 cuda devices; use at most 2"):
        Runtime(MachineConfig(accelerator="cuda", devices=3, strategy=strategy))


@pytest.mark.bits
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_narrow_strided_convolutions_train_on_any_processor(threads, tmp_path):
    """In the channels-last format, which these images are in, PyTorch may crash: with AVX2, or with several threads."""
    # A process of its own, not a fork: forked processes cannot use the threads of OpenMP.
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


def chosen(plain, **settings):
    runtime = Runtime(MachineConfig(accelerator="cpu", **settings))
    runtime.choose_layout(plain)
    return runtime.memory_format


@pytest.mark.parametrize(
    ("plain", "layout"),
    [
        (nn.Conv2d(4, 4, 1, stride=2), "contiguous"),  # PyTorch may corrupt memory
        (nn.Conv2d(16, 4, 1, stride=2), "channels_last"),
        (nn.Conv2d(4, 4, 3, stride=2), "contiguous"),  # DBB and RepVGG would give it such a branch
        (nn.Conv2d(4, 4, 3), "channels_last"),
        (nn.Conv2d(3, 4, 7, stride=2), "channels_last"),
    ],
)
def test_the_layout_follows_the_plain_network(plain, layout):
    """So that all methods of a comparison have the same."""
    assert chosen(plain) == layout
    assert chosen(plain, channels_last=False) == "contiguous"


@pytest.mark.parametrize("method", ["baseline", "sgs", "dbb", "dyrep"])
def test_every_method_trains_in_the_same_layout(method, tmp_path):
    data = {"name": "shapes-mini", "limit": 32, "test_limit": 8, "batch_size": 16}
    model = {"name": "mobilenetv2", "width": 0.125}
    assert quietly(tiny(tmp_path, method, epochs=1, model=model, data=data))[0].memory_format == "contiguous"


def test_a_layout_that_is_demanded():
    narrow, wide = nn.Conv2d(4, 4, 1, stride=2), nn.Conv2d(16, 4, 1, stride=2)
    assert chosen(wide, channels_last=True) == "channels_last"
    with pytest.raises(ConfigError, match=r"corrupts memory in the gradient of 0 .*--machine.channels-last auto"):
        chosen(nn.Sequential(narrow), channels_last=True)


def test_a_network_that_grew_an_unsafe_layer_leaves_the_layout():
    runtime = Runtime(MachineConfig(accelerator="cpu"))
    runtime.choose_layout(nn.Conv2d(3, 4, 3))
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert runtime.to_layout((images,))[0] is images
    grown = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1, stride=2)).to(memory_format=torch.channels_last)
    runtime.place_(grown)
    assert grown[0].weight.is_contiguous()
    laid_out, labels = runtime.to_layout((images, [0, 1]))
    assert laid_out.is_contiguous()
    assert labels == [0, 1]


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "2", "SLURM_NODEID": "0"},
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "1"},
    ],
    ids=["slurm", "ranks"],
)
def test_one_process_stays_one_in_a_cluster_job(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    runtime = Runtime(MachineConfig(accelerator="cpu", devices=1))
    assert (runtime.rank, runtime.world_size, runtime.is_first) == (0, 1, True)


@pytest.mark.parametrize("accelerator", ["cuda", "mps"])
def test_no_such_device(accelerator, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(ConfigError, match="--machine"):
        Runtime(MachineConfig(accelerator=accelerator))
    with pytest.raises(ConfigError, match=f"has 0 {accelerator} devices; use --machine.accelerator cpu"):
        Runtime(MachineConfig(accelerator=accelerator, devices=1))


def test_one_device_by_default():
    """Another number of processes is another training; whoever wants more says so."""
    assert (MachineConfig().devices, MachineConfig().nodes) == (1, 1)
