"""A command that is refused leaves no folder behind, and so does not stand in the way of the corrected one."""

import os
from pathlib import Path

import pytest

from spatialgrad.data import MissingDataError
from spatialgrad.train import CheckpointError, ConfigError
from support.data_files import write_tree
from support.external import user_module  # noqa: F401 (fixture)
from support.training import quietly, tiny

NO_DECAY = {"lr": None, "weight_decay": 0.0}
CORES = os.cpu_count() or 1


def method(name, **groups):
    return {"method": name, **groups}


REFUSED = {
    # The method.
    "repopt needs the scales of a search": method("repopt"),
    "nowhere is not a run's folder": method("repopt", repopt={"scales": Path("nowhere")}),
    "--scaling.live: .* takes 400 steps": method("sgs", scaling={"live": True, "batches": 200}),
    "--scaling.live: sgs-static has nothing to measure": method("sgs-static", scaling={"live": True}),
    # The data.
    "--data.drop-last drops the only batch: .* fewer than --batch-size 128. Use --data.no-drop-last": {
        "data": {"drop_last": True, "limit": 100, "batch_size": 128}
    },
    "^--data.validation 0.0001 holds out 0 of the 5000": {
        "data": {"validation": 0.0001, "limit": None, "test_limit": None}
    },
    "--data.limit 6000: .* has only 5000 train images": {"data": {"limit": 6000}},
    "--data.test-limit 2000: .* has only 1000 test images": {"data": {"test_limit": 2000}},
    # The machine.
    f"--machine.devices {50 * CORES}: this machine has {CORES} CPU cores; use at most {CORES}": {
        "machine": {"devices": 50 * CORES}
    },
    "--machine.strategy fsdp needs several devices": {"machine": {"strategy": "fsdp"}},
    # The optimizer.
    "module 'no_such_package.at_all' not found": {"optimizer": {"name": "no_such_package.at_all:X"}},
    "support.optimizers has no 'Lyon'; did you mean 'Lion'": {"optimizer": {"name": "support.optimizers:Lyon"}},
    "--optimizer.name torch.nn:Linear: it is not a torch.optim.Optimizer": {"optimizer": {"name": "torch.nn:Linear"}},
    "--optimizer.weight-decay must be 0 for support.optimizers:HomeMadeSGD, got 0.0005": {
        "optimizer": {"name": "support.optimizers:HomeMadeSGD"}
    },
    "--optimizer.options: adamw takes no epsilon; it takes .*eps": {
        "optimizer": {"name": "adamw", "options": ("epsilon=1",)}
    },
    "--optimizer.name adamw cannot be built: Invalid epsilon": {"optimizer": {"name": "adamw", "options": ("eps=-1",)}},
    "cannot be built: LBFGS|cannot be stepped as .*closure": {"optimizer": {"name": "torch.optim:LBFGS", **NO_DECAY}},
    "--optimizer.lr must be set": {"optimizer": {"name": "support.optimizers:SGDFromModel", **NO_DECAY}},
    r"cannot be stepped as step\(\)": {"optimizer": {"name": "support.optimizers:ScheduleFree", **NO_DECAY}},
    "--method sgs cannot train vgg11: Anchored keeps its own copy of the weights": method(
        "sgs", optimizer={"name": "support.optimizers:Anchored", **NO_DECAY}
    ),
    # The network.
    "--model.options dropuot=1: vgg11 does not accept this": {"model": {"options": ("dropuot=1",)}},
    "--model usernets:bild: usernets has no 'bild'; did you mean 'build'": {"model": {"name": "usernets:bild"}},
    "--model nowhere:build: module 'nowhere' not found": {"model": {"name": "nowhere:build"}},
    "--model timm:resnet18dd: timm has no network": {"model": {"name": "timm:resnet18dd"}},
    "--model torchvision:resnet18: torchvision's networks take images with 3": {
        "model": {"name": "torchvision:resnet18"}
    },
    "--model usernets:no_network: .* must return a torch.nn.Module": {"model": {"name": "usernets:no_network"}},
    "--model.options chanels=3: usernets:build has no parameter": {
        "model": {"name": "usernets:build", "options": ("chanels=3",)}
    },
    "--model.options x=1: timm:test_resnet cannot be built": {
        "model": {"name": "timm:test_resnet", "options": ("x=1",)}
    },
    "--model.pretrained: .*no parameter `pretrained`": {"model": {"name": "usernets:build", "pretrained": True}},
    "--model usernets:color_only does not accept images of 1 × 28 × 28": {"model": {"name": "usernets:color_only"}},
    "must return one tensor of logits, not tuple": {"model": {"name": "usernets:two_outputs"}},
    r"must return 10 numbers per image.*\(2, 9\)": {"model": {"name": "usernets:too_few"}},
    "--model timm:test_vit does not accept images of 1 × 28 × 28": {"model": {"name": "timm:test_vit"}},
    "--method sgs cannot train usernets:dense: .*no convolution": method("sgs", model={"name": "usernets:dense"}),
    "--method dbb cannot train usernets:dense: .*no convolution": method("dbb", model={"name": "usernets:dense"}),
}


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize("message", REFUSED)
def test_nothing_is_written(message, tmp_path):
    groups = dict(REFUSED[message])
    if groups.get("model", {}).get("name", "vgg11") != "vgg11":
        groups["model"] = {"width": 1.0, **groups["model"]}
    with pytest.raises(ConfigError, match=message) as caught:
        quietly(tiny(tmp_path / "run", **groups))
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_start_without_a_checkpoint(tmp_path):
    quietly(tiny(tmp_path / "search", "repopt-search", epochs=1, data={"limit": 64}))
    for path in (tmp_path / "search").glob("checkpoint*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"--repopt\.scales: .*search has a result, but no weights"):
        quietly(tiny(tmp_path / "run", "repopt", repopt={"scales": tmp_path / "search"}))
    assert not (tmp_path / "run").exists()


def test_missing_data(tmp_path):
    with pytest.raises(MissingDataError, match="spatialgrad data get cifar100"):
        quietly(tiny(tmp_path / "run", data={"name": "cifar100", "root": tmp_path / "nothing"}))
    assert not (tmp_path / "run").exists()


def test_class_folders_that_are_too_small(tmp_path):
    data = {"name": f"folder:{write_tree(tmp_path / 'pets')}", "image_size": 32, "batch_size": 64}
    with pytest.raises(ConfigError, match=r"--data\.limit 150: .* has only"):
        quietly(tiny(tmp_path / "run", data=data))
    assert not (tmp_path / "run").exists()
