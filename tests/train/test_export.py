"""A run's network as weights and as ONNX, merged, with what its inputs and outputs are."""

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from spatialgrad.data import MissingDataError, load_dataset
from spatialgrad.data.sets import fashion_mnist
from spatialgrad.train import CheckpointError, ConfigError, export_onnx, export_weights, load_model
from support.training import quietly, tiny


@pytest.mark.parametrize("method", ["sgs", pytest.param("dyrep", marks=pytest.mark.slow)])
def test_onnx_computes_the_same_for_any_batch_size(method, tmp_path):
    quietly(tiny(tmp_path, method, epochs=2))
    path = export_onnx(tmp_path)
    assert path == tmp_path / "model.onnx"
    network = onnx.load(path)
    assert sum(node.op_type == "Conv" for node in network.graph.node) == 8  # merged
    assert b".py" not in path.read_bytes(), "the file tells where the sources are on this machine"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for number in (1, 5):
        images = torch.randn(number, 1, 28, 28)
        (found,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, load_model(tmp_path)(images).numpy(), rtol=1e-3, atol=1e-4)


def test_the_data_set_is_not_needed(branched, tmp_path, monkeypatch):
    dataset, images = load_dataset("fashion-mnist-mini"), torch.randn(2, 1, 28, 28)
    before = load_model(branched)(images)
    monkeypatch.setattr(fashion_mnist, "MINI", replace(fashion_mnist.MINI, places=[tmp_path / "gone"]))
    with pytest.raises(MissingDataError):
        load_dataset("fashion-mnist-mini")
    assert torch.equal(load_model(branched)(images), before)
    exported = torch.load(export_weights(branched), weights_only=True)
    assert exported["state_dict"].keys() == load_model(branched).state_dict().keys()
    proto = onnx.load(export_onnx(branched))
    (given,) = proto.graph.input
    assert [side.dim_value for side in given.type.tensor_type.shape.dim[1:]] == [1, 28, 28]
    # What turns images into inputs, and outputs into names.
    preprocessing = exported["preprocessing"]
    assert {entry.key: json.loads(entry.value) for entry in proto.metadata_props} == preprocessing
    assert preprocessing == {
        **{"mean": list(dataset.mean), "std": list(dataset.std), "classes": list(dataset.class_names)},
        **{"height": 28, "width": 28},
    }


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="not a run's folder"):
        export_onnx(tmp_path)


def test_a_run_without_a_checkpoint(finished):
    for path in finished.glob("checkpoint*.pt"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"has a result, but no weights: .*Move the folder away"):
        export_onnx(finished)
    (finished / "result.json").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        export_onnx(finished)
