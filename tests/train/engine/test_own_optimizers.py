"""Optimizers beyond PyTorch's classical ones: AdamW, Lion and any class, with options, scaled and resumed."""

import pytest
import torch

from spatialgrad.train import ConfigError, OptimizerConfig
from spatialgrad.train.methods.scaling import MutualInformationScaling
from spatialgrad.train.optimizers import build_optimizer, check_optimizer
from support.common import define_torchvision_operators
from support.training import assert_resumes, quietly, tiny

HOME_MADE = "support.optimizers:HomeMadeSGD"
NO_DECAY = {"lr": None, "weight_decay": 0.0}


def network():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))


def test_options_reach_the_optimizer():
    config = OptimizerConfig(name="adamw", options=("eps=1e-6", "betas=(0.9, 0.95)", "amsgrad=True"))
    optimizer = build_optimizer(config, network())
    assert type(optimizer) is torch.optim.AdamW
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["amsgrad"]) == (1e-3, (0.9, 0.95), 1e-6, True)
    assert group["weight_decay"] == 5e-4


def test_lion_is_timms_where_torch_has_none():
    define_torchvision_operators()
    lion = pytest.importorskip("timm.optim").Lion
    optimizer = build_optimizer(OptimizerConfig(name="lion"), network())
    assert type(optimizer) is getattr(torch.optim, "Lion", lion)
    assert optimizer.param_groups[0]["lr"] == 1e-4


def test_a_class_by_its_path(monkeypatch, tmp_path):
    """Also from the current folder, which is not in the path of an installed command."""
    (tmp_path / "mine_of_this_test.py").write_text(
        "import torch\nclass Mine(torch.optim.SGD):\n"
        "    def __init__(self, params, lr=0.3, weight_decay=0.0):\n"
        "        super().__init__(params, lr=lr, weight_decay=weight_decay)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in __import__("sys").path if each])
    config = OptimizerConfig(name="mine_of_this_test:Mine")
    assert config.learning_rate == 0.3
    assert build_optimizer(config, network()).param_groups[0]["lr"] == 0.3
    assert OptimizerConfig(name=HOME_MADE, lr=0.5).learning_rate == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adamv"}, "unknown --optimizer.name .* 'adamv'; did you mean 'adam"),
        ({"name": "a b:C"}, "--optimizer.name must be a name or package.module:Class, got 'a b:C'"),
        ({"name": "torch.optim:"}, "--optimizer.name must be a name or package.module:Class"),
        ({"options": ("eps",)}, "--optimizer.options takes key=value, .*got 'eps'"),
        ({"options": ("lr=1",)}, "--optimizer.options: lr cannot be set here; use --optimizer.lr"),
        ({"options": ("momentum=0.5",)}, "--optimizer.options: momentum cannot be set here; use --optimizer.momentum"),
        ({"options": ("eps=1", "eps=2")}, "--optimizer.options: eps occurs twice"),
    ],
)
def test_bad_values_are_refused_at_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "no_such_package.at_all:X"}, "cannot import no_such_package.at_all .*No module named"),
        ({"name": "support.optimizers:Lyon"}, "support.optimizers has no such class; support.optimizers has .*Lion"),
        ({"name": "torch.nn:Linear"}, "torch.nn:Linear is the class Linear, not a torch.optim.Optimizer"),
        ({"name": HOME_MADE}, "--optimizer.weight-decay must be 0 for support.optimizers:HomeMadeSGD, got 0.0005"),
        ({"name": "adamw", "options": ("epsilon=1",)}, "--optimizer.options: adamw takes no epsilon; it takes .*eps"),
        ({"name": "adamw", "options": ("betas=3",)}, "--optimizer.name adamw cannot be built: .*"),
        ({"name": "adamw", "options": ("eps=-1",)}, "--optimizer.name adamw cannot be built: Invalid epsilon"),
        ({"name": "torch.optim:LBFGS", **NO_DECAY}, "cannot be built: LBFGS|cannot be stepped as .*closure"),
        ({"name": "support.optimizers:SGDFromModel", **NO_DECAY}, "--optimizer.lr must be set"),
        ({"name": "support.optimizers:ScheduleFree", **NO_DECAY}, "cannot be stepped as step()"),
        ({"name": "support.optimizers:Anchored", **NO_DECAY}, "--scaling.apply auto: Anchored calculates the weights"),
    ],
)
def test_what_cannot_train_is_refused_before_anything_is_written(settings, message, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=message):
        quietly(tiny(folder, "sgs", optimizer=settings))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "apply"),
    [("adamw", "update"), ("lion", "update"), ("support.optimizers:Lion", "update"), (HOME_MADE, "gradient")],
)
def test_scaling_finds_its_place(name, apply, tmp_path):
    define_torchvision_operators()
    config = tiny(tmp_path, "sgs", optimizer={"name": name, **NO_DECAY})
    check_optimizer(config)
    model = network()
    method = MutualInformationScaling(config)
    method.attach(model, build_optimizer(config.optimizer, model))
    assert method.sgs.apply == apply


@pytest.mark.parametrize("name", ["adamw", "lion", "support.optimizers:Lion"])
def test_resumed_bit_for_bit(name, tmp_path):
    define_torchvision_operators()
    options = ("amsgrad=True",) if name == "adamw" else ()
    optimizer = {"name": name, **NO_DECAY, "options": options}
    assert_resumes(lambda folder: tiny(folder, "sgs", optimizer=optimizer), tmp_path, 7)
