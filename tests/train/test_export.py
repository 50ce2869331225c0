"""A run's network as ONNX, merged."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from spatialgrad.data import MissingDataError, load_dataset
from spatialgrad.data.sets import fashion_mnist
from spatialgrad.train import CheckpointError, ConfigError, export_onnx, export_weights, load_model
from spatialgrad.train.checkpoint import read_checkpoint
from support.training import quietly, tiny


@pytest.mark.parametrize("method", ["sgs", "dbb", "dyrep"])
def test_onnx_computes_the_same_for_any_batch_size(method, tmp_path):
    quietly(tiny(tmp_path, method, epochs=2))
    path = export_onnx(tmp_path)
    assert path == tmp_path / "model.onnx"
    network = onnx.load(path)
    assert sum(node.op_type == "Conv" for node in network.graph.node) == 8  # merged
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for number in (1, 5):
        images = torch.randn(number, 1, 28, 28)
        (found,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, load_model(tmp_path)(images).numpy(), rtol=1e-3, atol=1e-4)


def test_the_data_set_is_not_needed(tmp_path, monkeypatch):
    quietly(tiny(tmp_path, "dbb", epochs=1))
    images = torch.randn(2, 1, 28, 28)
    before = load_model(tmp_path)(images)
    monkeypatch.setattr(fashion_mnist, "MINI_FOLDER", tmp_path / "gone")
    with pytest.raises(MissingDataError):
        load_dataset("fashion-mnist-mini")
    assert torch.equal(load_model(tmp_path)(images), before)
    weights = torch.load(export_weights(tmp_path), weights_only=True)
    assert weights.keys() == load_model(tmp_path).state_dict().keys()
    (given,) = onnx.load(export_onnx(tmp_path)).graph.input
    assert [side.dim_value for side in given.type.tensor_type.shape.dim[1:]] == [1, 28, 28]


@pytest.mark.parametrize("network", [None, {}, {"num_classes": 10, "input_size": 28}, {"num_classes": "ten"}], ids=str)
def test_a_checkpoint_that_does_not_say_what_its_network_is_for(network, tmp_path):
    """As those of earlier versions."""
    quietly(tiny(tmp_path, epochs=1))
    state = read_checkpoint(tmp_path / "checkpoint.pt")
    torch.save(
        {name: network if name == "network" else value for name, value in state.items()}, tmp_path / "checkpoint.pt"
    )
    with pytest.raises(CheckpointError, match="does not record the number of classes and the size of the images"):
        load_model(tmp_path)


def test_reading_leaves_a_damaged_checkpoint_alone(tmp_path):
    """A network may be loaded while the run still trains, and it may belong to someone else."""
    quietly(tiny(tmp_path, epochs=1, budget={"checkpoint_steps": 2}))
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    before = sorted(tmp_path.iterdir())
    assert isinstance(load_model(tmp_path), torch.nn.Module)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="not a run's folder"):
        export_onnx(tmp_path)


def test_a_run_without_a_checkpoint(tmp_path):
    quietly(tiny(tmp_path, epochs=1))
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(CheckpointError, match=r"has a result, but no weights: .*Move the folder away"):
        export_onnx(tmp_path)
    (tmp_path / "result.json").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        export_onnx(tmp_path)
