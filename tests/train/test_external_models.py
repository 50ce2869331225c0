"""External networks train, resume, merge and export as those of the package do."""

import json
import sys

import pytest
import torch

from spatialgrad.models import create_model
from spatialgrad.train import (
    ConfigError,
    DeployError,
    ModelConfig,
    Run,
    export_onnx,
    export_weights,
    load_model,
    resume,
)
from support.data_files import write_tree
from support.external import user_module  # noqa: F401 (fixture)
from support.training import SILENT, assert_resumes, quietly, stop_at, tiny

OWN = {"name": "usernets:build"}


def outside(out, method="baseline", *, epochs=1, name="usernets:build", options=(), pretrained=False, **groups):
    """A training of the user's network on grey images of 28 × 28."""
    model = ModelConfig(name=name, options=options, pretrained=pretrained)
    return tiny(out, method, epochs=epochs, model=model, **groups)


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize("method", ["sgs", "dbb", "dyrep", "lemma", "repopt-search"])
def test_every_method(method, tmp_path):
    """Also with a forward pass that cannot be traced, only observed."""
    result, said = quietly(outside(tmp_path / "run", method, epochs=2, options=("traceable=False",)))
    assert result.model == "usernets:build"
    assert said.startswith("usernets:build on Fashion-MNIST")
    assert "no effect" not in said
    model = load_model(tmp_path / "run")
    plain = create_model("usernets:build", num_classes=10, in_channels=1)
    assert {name for name, _ in model.named_modules()} == {name for name, _ in plain.named_modules()}
    assert (result.training_parameters > result.parameters) == (method in ("dbb", "dyrep", "repopt-search"))


@pytest.mark.bits
@pytest.mark.usefixtures("user_module")
def test_resumed_in_the_middle(tmp_path):
    assert_resumes(lambda out: outside(out, "dbb", epochs=2, options=("channels=3",)), tmp_path, 3, 7)


@pytest.mark.usefixtures("user_module")
def test_the_folder_holds_what_builds_the_network_again(user_module, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    quietly(outside(run, "dbb", options=("traceable=True", "channels=5")))
    assert Run.open(run).config.model == ModelConfig(name="usernets:build", options=("channels=5", "traceable=True"))
    assert json.loads((run / "config.json").read_text())["model"]["options"] == ["channels=5", "traceable=True"]
    environment = json.loads((run / "environment.json").read_text())
    assert environment["model"]["file"] == str(user_module / "usernets.py")
    images = torch.rand(3, 1, 28, 28)
    merged, branched = load_model(run), load_model(run, merged=False)
    assert torch.allclose(merged(images), branched(images), atol=1e-5)
    assert not any("branches" in name for name, _ in merged.named_modules())
    state = torch.load(export_weights(run), weights_only=True)["state_dict"]
    assert state.keys() == merged.state_dict().keys()
    assert export_onnx(run).stat().st_size > 0


@pytest.mark.usefixtures("user_module")
def test_a_network_that_onnx_cannot_express(tmp_path):
    run = tmp_path / "run"
    quietly(outside(run, options=("traceable=False",)))
    with pytest.raises(DeployError, match=r"torch.onnx.export failed for the network of .*without --onnx"):
        export_onnx(run)
    assert not (run / "model.onnx").exists()
    assert export_weights(run).exists()


def test_other_code_is_noticed(user_module, tmp_path):  # noqa: F811
    config = outside(tmp_path / "run", epochs=2)
    stop_at(3, config)
    path = user_module / "usernets.py"
    path.write_text(path.read_text() + "\n# more\n")
    _, said = quietly(config)
    assert "(model.sha256)" in said
    assert "usernets:build is built by other code than in the first session" in said


def test_without_its_code_a_run_cannot_be_loaded(user_module, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    stop_at(3, outside(run, epochs=2))
    (user_module / "usernets.py").unlink()
    del sys.modules["usernets"]
    for function in (load_model, resume):
        with pytest.raises(
            ConfigError, match="--model usernets:build: module 'usernets' not found; run the command in"
        ):
            function(run)


def test_pretrained_weights_are_read_once(user_module, tmp_path):  # noqa: F811
    """A resumed, loaded or exported run has its weights in the checkpoint."""
    torch.manual_seed(5)
    source, run = create_model("usernets:tuned", num_classes=3, in_channels=1), tmp_path / "run"
    torch.save(source.first.state_dict(), user_module / "weights.pt")

    def make(out):
        return outside(
            out, "dbb", epochs=2, name="usernets:tuned", pretrained=True, optimizer={"lr": 1e-30, "weight_decay": 0.0}
        )

    quietly(make(tmp_path / "whole"))
    for step in (0, 3):
        stop_at(step, make(run))
        (user_module / "weights.pt").unlink(missing_ok=True)
    resume(run, console=SILENT)
    first = load_model(run, merged=False).first.branches["kxk"].conv.weight
    assert torch.equal(first, load_model(tmp_path / "whole", merged=False).first.branches["kxk"].conv.weight)
    assert export_weights(run).exists()
    assert Run.open(run).config.model.pretrained
    assert torch.equal(first, source.first.weight)  # where it started: with this learning rate nothing moves


def test_timm(tmp_path):
    """A real network with branches, merged; the library and its version are recorded."""
    timm = pytest.importorskip("timm")
    run = tmp_path / "run"
    result, _ = quietly(outside(run, "dbb", name="timm:test_resnet", options=("drop_rate=0.1",)))
    assert result.training_parameters > result.parameters
    recorded = json.loads((run / "environment.json").read_text())["model"]
    assert recorded == {"library": "timm", "version": timm.__version__}
    assert load_model(run)(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_torchvision_on_a_folder_of_images(tmp_path, monkeypatch):
    """Fine-tuning: every weight but the last layer's starts as in the library's cache."""
    models = pytest.importorskip("torchvision.models")
    source = create_model("torchvision:shufflenet_v2_x0_5")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    file = tmp_path / "hub" / "checkpoints" / models.ShuffleNet_V2_X0_5_Weights.DEFAULT.url.rpartition("/")[2]
    torch.save(source.state_dict(), file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    data = {"name": f"folder:{write_tree(tmp_path / 'pets')}", "image_size": 32, "limit": None, "test_limit": None}
    config = outside(
        tmp_path / "run",
        "sgs",
        name="torchvision:shufflenet_v2_x0_5",
        pretrained=True,
        data={**data, "batch_size": 9},
        optimizer={"lr": 1e-30, "weight_decay": 0.0},
    )
    result, _ = quietly(config)
    file.unlink()
    model = load_model(tmp_path / "run")
    assert result.model == "torchvision:shufflenet_v2_x0_5"
    assert model.fc.out_features == 3
    assert torch.equal(model.conv5[0].weight, source.conv5[0].weight)


def test_options_of_the_networks_of_the_package(tmp_path):
    config = tiny(tmp_path / "run", model={"options": ("hidden=(8,)", "dropout=0.25")}, epochs=1)
    quietly(config)
    model = load_model(tmp_path / "run")
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == [0.25]
