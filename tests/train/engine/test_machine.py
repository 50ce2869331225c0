"""Devices: those that are there, and an error that says so for others."""

import os

import pytest

from spatialgrad.train import ConfigError, MachineConfig
from spatialgrad.train.engine.machine import Machine
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
        Machine(MachineConfig(accelerator="cuda", devices=3, strategy=strategy))


@pytest.mark.parametrize("accelerator", ["cuda", "mps"])
def test_no_such_device(accelerator, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(ConfigError, match="--machine"):
        Machine(MachineConfig(accelerator=accelerator))
    with pytest.raises(ConfigError, match=f"has 0 {accelerator} devices; use --machine.accelerator cpu"):
        Machine(MachineConfig(accelerator=accelerator, devices=1))
