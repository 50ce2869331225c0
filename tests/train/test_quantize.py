"""A run's network in INT8: accuracy, size, time, the error of each layer, and what leaves no file behind."""

import importlib.util
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from spatialgrad.train import ConfigError, DeployError, Run, export_int8
from spatialgrad.train.export import DeployedNetwork, to_onnx
from spatialgrad.train.identity import Identity
from spatialgrad.train.quantize import describe_export, layer_errors, layer_weights, prepare, quantize, weight_range
from support.training import quietly, tiny


def test_a_run_is_exported_in_int8(branched):
    accuracy = Run.open(branched).result.value
    found = export_int8(branched, calibration_images=100)
    assert [found.float_path, found.int8_path] == [branched / "model.onnx", branched / "model.int8.onnx"]
    assert found.float.metrics["accuracy"] == pytest.approx(accuracy, abs=0.011)  # one of 100 images
    assert found.int8.metrics["accuracy"] == pytest.approx(accuracy, abs=0.15)
    assert found.int8.num_bytes < 0.5 * found.float.num_bytes
    assert min(found.int8.seconds, found.float.seconds) > 0
    network = onnx.load(found.int8_path)
    session = onnxruntime.InferenceSession(found.int8_path, providers=["CPUExecutionProvider"])
    assert session.run(None, {"images": np.zeros((3, 1, 28, 28), np.float32)})[0].shape == (3, 10)
    metadata = {entry.key: json.loads(entry.value) for entry in network.metadata_props}
    assert metadata["calibration"]["images"] == 100
    assert metadata["classes"]
    scales = {each.name: list(each.dims) for each in network.graph.initializer if each.name.endswith("weight_scale")}
    assert scales["features.0.weight_scale"] == [4]  # one per channel
    assert [name for name in found.layers if name.startswith("features")] == list(found.layers)[:8]
    said = describe_export(found)
    for text in ("accuracy", "MB", "ms", "100 training images", "standard deviations", str(found.int8_path)):
        assert text in said


def test_the_layer_with_the_widest_weights_has_the_largest_error():
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(3) for part in (nn.Conv2d(4, 4, 3, bias=False), nn.ReLU())))
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] = 40.0
    network = prepare(to_onnx(DeployedNetwork(name="model", model=model, input_size=(4, 12, 12), preprocessing={})))
    images = [np.random.default_rng(0).normal(size=(8, 4, 12, 12)).astype(np.float32)]
    ranges = {name: weight_range(weights) for name, weights in layer_weights(network).items()}
    weight = model[2].weight.detach()
    assert ranges["2"] == pytest.approx(float(weight.abs().max() / weight.std(correction=0)), rel=1e-5)
    errors = {each: layer_errors(network, quantize(network, images, per_channel=each), images[0]) for each in (0, 1)}
    for found in errors.values():
        assert min(found, key=lambda name: found[name].weights) == "2"
        assert found["0"].weights > found["2"].weights + 6
        assert found["2"].weight_range == ranges["2"]
    # The other three channels of the layer get scales of their own.
    assert errors[1]["2"].weights > errors[0]["2"].weights + 1


def test_a_training_evaluates_in_int8_at_its_end(tmp_path):
    config = tiny(tmp_path / "int8", "qarepvgg", epochs=2, budget={"int8": True})
    result, said = quietly(config)
    assert result.test["accuracy_int8"] == pytest.approx(result.value, abs=0.15)
    assert result.test["accuracy_int8_per_tensor"] == pytest.approx(result.value, abs=0.15)
    assert len(result.weight_ranges) == 11
    assert min(result.weight_ranges.values()) > 1
    assert "with one scale per layer" in said
    assert Run.open(tmp_path / "int8").result == result
    without = tiny(tmp_path / "float", "qarepvgg", epochs=2)
    assert Identity(config).digest != Identity(without).digest


def failing(*args, **kwargs):
    raise RuntimeError("Opset 99 is under development")


@pytest.mark.parametrize(
    ("where", "value", "error", "message"),
    [
        (None, 0, ConfigError, "--calibration-images must be at least 1, got 0"),
        ("importlib.util.find_spec", None, ConfigError, r"ONNX needs onnx: pip install 'spatialgrad\[onnx\]'"),
        ("torch.onnx.export", failing, DeployError, "torch.onnx.export failed"),
        (
            "onnxruntime.InferenceSession",
            failing,
            DeployError,
            r"cannot run the network, which has opset \d+",
        ),
        ("onnxruntime.quantization.quantize_static", failing, DeployError, "cannot quantize the network"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(where, value, error, message, branched, monkeypatch):
    before = sorted(branched.iterdir())
    images = 512
    if where is None:
        images = value
    elif value is None:
        find = importlib.util.find_spec
        monkeypatch.setattr("spatialgrad.train.export.find_spec", lambda name: None if name == "onnx" else find(name))
    else:
        monkeypatch.setattr(where, value)
    with pytest.raises(error, match=message):
        export_int8(branched, calibration_images=images)
    assert sorted(branched.iterdir()) == before


def test_int8_is_for_classification(tmp_path):
    from spatialgrad.train import recipe
    from spatialgrad.train.config import with_values

    with pytest.raises(ConfigError, match=r"--budget.int8 .*cannot be set for segmentation"):
        with_values(recipe("segmentation_pocket"), {"budget.int8": True})
