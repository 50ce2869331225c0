"""Every method trains on the shipped images, is deployed as a plain network, and can be exported."""

import itertools
import sys

import pytest
import torch

from spatialgrad import scaling_from_ratios
from spatialgrad.train import METHODS, Method, Run, load_model
from spatialgrad.train.config import METHOD_NAMES
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.learner import Learner
from spatialgrad.train.methods.base import EpochContext, Update
from spatialgrad.train.optimizers import DEFAULT_LR
from spatialgrad.train.runtime import Runtime
from spatialgrad.train.start_weights import StartWeights
from spatialgrad.train.tasks.classification import Classification
from support.common import define_torchvision_operators
from support.training import quietly, tiny, weights

BRANCHED = ("acb", "repvgg", "qarepvgg", "dbb", "repopt-search")


QUICK = ("baseline", "sgs", "dbb", "dyrep")
SLOW = [name for name in METHOD_NAMES if name not in (*QUICK, "repopt", "lemma")]


@pytest.mark.parametrize("method", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_learns_and_is_deployed(method, tmp_path):
    data = {"limit": 600, "test_limit": 200, "batch_size": 16, "cutout": 0}
    schedule = {"scaling": {"every": 2}, "dyrep": {"interval": 2}}
    result, said = quietly(tiny(tmp_path, method, epochs=3, data=data, **schedule))
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert lines[-1]["train_loss"] < 0.95 * lines[0]["train_loss"]
    assert result.test["accuracy"] > 0.2  # ten classes
    assert result.method == method
    grown = method == "dyrep" and any(line["grown"] for line in read_lines(tmp_path / "growth.jsonl"))
    if method in BRANCHED or grown:
        assert result.training_parameters > result.parameters
        assert result.merge_difference < 1e-5
        assert result.test["accuracy"] == pytest.approx(result.trained["accuracy"], abs=0.002)
        assert result.test["loss"] == pytest.approx(result.trained["loss"], rel=1e-3)
        assert "merged" in said
    else:
        assert result.training_parameters == result.parameters
    convolutions = [m for m in load_model(tmp_path).modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 8  # a plain VGG-11, whatever it was in training


def test_dyrep_grows_until_the_last_epoch_that_is_named(tmp_path):
    quietly(tiny(tmp_path, "dyrep", epochs=4, data={"limit": 64}, dyrep={"until": 2}))
    lines = read_lines(tmp_path / "growth.jsonl")
    assert [line["epoch"] for line in lines] == [1, 2]
    assert all(line["grown"] for line in lines)
    assert any(".branches." in name for name in weights(tmp_path))


def test_dyrep_draws_other_weights_for_every_growth(tmp_path):
    """Two layers of the same shape, one after the other: branches of the same name differ."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.Conv2d(3, 3, 3, padding=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = METHODS["dyrep"](tiny(tmp_path, "dyrep"))
    method.attach(model, optimizer)
    images = torch.rand(4, 3, 8, 8)
    grown = []
    for epoch in (1, 2):
        model(images).square().mean().backward()
        optimizer.step()
        before = set(model.state_dict())
        context = EpochContext(epoch=epoch, batches=[images], forward=lambda network, batch: network(batch))
        name = method.before_epoch(context).log["grown"]
        new = {key: value for key, value in model.state_dict().items() if key not in before}
        grown.append({key.removeprefix(name): value for key, value in new.items() if key.endswith("1x1.conv.weight")})
    first, second = grown
    assert first
    assert first.keys() == second.keys()
    assert not any(torch.equal(first[key], second[key]) for key in first)


def test_static_scalings_are_those_of_the_ratios(tmp_path):
    quietly(tiny(tmp_path, "sgs-static", epochs=2, scaling={"alpha": 2.0, "beta": 4.0}))
    (line,) = read_lines(tmp_path / "scalings.jsonl")
    assert line["epoch"] == 0
    assert "dependence" not in line
    for G in line["scalings"].values():
        torch.testing.assert_close(torch.tensor(G), scaling_from_ratios(2.0, 4.0).float())


@pytest.mark.parametrize("method", ["sgs", "sgs-autocorrelation"])
def test_every_update_is_logged_with_what_was_measured(method, tmp_path):
    quietly(tiny(tmp_path, method))
    lines = read_lines(tmp_path / "scalings.jsonl")
    assert [(line["epoch"], line["step"], line["update"]) for line in lines] == [(1, 5, 1), (2, 10, 2)]
    convolutions = [
        name for name, module in load_model(tmp_path).named_modules() if isinstance(module, torch.nn.Conv2d)
    ]
    for line in lines:
        assert list(line["scalings"]) == convolutions
        assert 0 < len(line["dependence"]) <= len(convolutions)
        for name, values in line["scalings"].items():
            G = torch.tensor(values)
            assert G.shape == (3, 3)
            assert G.mean() == pytest.approx(1, abs=1e-5)
            if name in line["dependence"]:
                S = torch.tensor(line["dependence"][name])
                assert S.shape == G.shape
                assert S[1, 1] == pytest.approx(1)
                assert ((S >= 0) & (S <= 1 + 1e-6)).all()
    assert lines[0]["scalings"] != lines[1]["scalings"]
    assert lines[0]["dependence"] != lines[1]["dependence"]


@pytest.mark.filterwarnings("ignore:.* normalizes the gradient:spatialgrad.NoEffectWarning")
@pytest.mark.parametrize("optimizer", DEFAULT_LR)
def test_every_optimizer_scales_gradients_and_updates(optimizer, tmp_path):
    if optimizer == "lion":
        define_torchvision_operators()
    changes = {"data": {"limit": 64, "test_limit": 8}, "budget": {"epochs": 2, "evaluate_every": 2}}
    changes["optimizer"] = {"name": optimizer, "lr": None, "momentum": 0.0}
    found = {}
    for name, method, apply in (("plain", "baseline", "gradient"), ("G", "sgs", "gradient"), ("U", "sgs", "update")):
        quietly(tiny(tmp_path / name, method, **changes, scaling={"apply": apply}))
        found[name] = weights(tmp_path / name)
        assert all(value.isfinite().all() for value in found[name].values())
    kernels = [state["features.8.weight"] for state in found.values()]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(kernels, 2))


@pytest.mark.parametrize(
    ("method", "epochs", "groups", "reason"),
    [
        ("sgs", 1, {}, "the warm-up (--scaling.warmup 1) is as long as the training (--epochs 1)"),
        ("sgs-autocorrelation", 2, {"scaling": {"warmup": 2}}, "(--scaling.warmup 2) is as long as"),
        ("sgs", 2, {"scaling": {"every": 100}}, None),
        ("sgs", 1, {"scaling": {"warmup": 0}}, None),
        ("sgs-static", 1, {}, None),
        ("sgs-static", 1, {"scaling": {"alpha": 1.0, "beta": 1.0}}, "all scalings are 1"),
        (
            "dyrep",
            2,
            {"dyrep": {"interval": 2}},
            "no branch grows in --epochs 2 (--dyrep.interval 2, --dyrep.until 500)",
        ),
        ("dyrep", 2, {"dyrep": {"until": 0}}, "--dyrep.until 0"),
        ("dyrep", 2, {}, None),
        ("baseline", 1, {}, None),
        ("dbb", 1, {}, None),
        ("lemma", 1, {}, None),
    ],
)
def test_why_a_method_never_acts(method, epochs, groups, reason, tmp_path):
    config = tiny(tmp_path, method, epochs=epochs, data={"limit": 64}, **groups)
    runtime = Runtime(config.machine)
    learner = Learner(config, runtime, Classification(config, runtime.device), StartWeights())
    assert (reason or "") in str(learner.method.no_effect_reason())
    assert (learner.method.no_effect_reason() is None) == (reason is None)


def test_a_method_that_never_acts_says_so(tmp_path):
    result, said = quietly(tiny(tmp_path, "sgs", epochs=1, data={"limit": 64}))
    start, end = said.split("epoch 1/", 1)
    assert f"sgs has no effect in this training: {result.no_effect}." in start
    assert f"sgs had no effect: {result.no_effect}" in end
    assert Run.open(tmp_path).result == result


def test_a_new_method_is_one_class(tmp_path, monkeypatch):
    """Here: noise on the gradients, which falls from epoch to epoch, and weights averaged at the end."""
    moments = []

    class Noisy(Method):
        log_file = "noise.jsonl"

        def prepare_(self, model):
            moments.append("prepare")

        def attach(self, model, optimizer):
            self.weights, self.level = list(model.parameters()), 0.0
            moments.append("attach")

        def before_epoch(self, context):
            assert len(context.batches) == 5
            self.level = 0.1 / (1 + context.epoch)
            return Update(log={"level": self.level})

        def before_step(self, step):
            assert all(weight.grad is not None for weight in self.weights)
            for weight in self.weights:
                weight.grad.add_(self.level * torch.randn_like(weight))

        def state_dict(self):
            return {"level": self.level}

        def load_state_dict(self, state):
            self.level = state["level"]

    monkeypatch.setattr(sys.modules[__name__], "Noisy", Noisy, raising=False)
    result, _ = quietly(tiny(tmp_path, f"{__name__}:Noisy", epochs=2))
    assert result.method == f"{__name__}:Noisy"
    assert moments == ["prepare", "attach"]
    assert read_lines(tmp_path / "noise.jsonl") == [
        {"step": 0, "epoch": 0, "level": 0.1},
        {"step": 5, "epoch": 1, "level": 0.05},
    ]
