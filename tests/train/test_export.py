"""A run's network as ONNX, merged."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from spatialgrad.train import CheckpointError, ConfigError, export_onnx, load_model
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


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="not a run's folder"):
        export_onnx(tmp_path)


def test_a_run_without_a_checkpoint(tmp_path):
    quietly(tiny(tmp_path, epochs=1))
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        export_onnx(tmp_path)
