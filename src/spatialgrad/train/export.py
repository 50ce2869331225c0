"""A run's network for the world outside: ONNX, or its plain weights."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from spatialgrad.train.deploy import load_task_and_model
from spatialgrad.train.errors import ConfigError, DeployError
from spatialgrad.train.runs.checkpoint import replacing

TOLERANCE = 1e-3
"""Largest difference between the outputs of the exported and the trained network, relative to the largest output."""


def export_weights(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write the weights of a run's merged network, as a state_dict.

    Args:
        folder: Of the run.
        path: The file to write; by default `model.pt` in the folder.
    """
    target = Path(folder) / "model.pt" if path is None else Path(path)
    _, model = load_task_and_model(folder)
    with replacing(target) as file:
        torch.save(model.state_dict(), file)
    return target


def export_onnx(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write a run's merged network as ONNX, for any batch size, and run it once to compare.

    Args:
        folder: Of the run.
        path: The file to write; by default `model.onnx` in the folder.

    Raises:
        ConfigError: If a package that this needs is missing.
        DeployError: If the file does not compute what the network does.
    """
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ImportError as error:
        raise ConfigError(f"ONNX needs {error.name}: pip install onnx onnxscript onnxruntime") from error
    target = Path(folder) / "model.onnx" if path is None else Path(path)
    task, model = load_task_and_model(folder)
    # Two different images: a batch of one would be taken for a constant.
    images = torch.randn(2, *task.input_size, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        # The exporter's own use of what torch has deprecated.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.float(),
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["output"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
    if program is None:
        raise DeployError("torch.onnx.export returned nothing")
    content = program.model_proto.SerializeToString()
    onnx.checker.check_model(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"images": images.numpy()})[:1]
    with torch.no_grad():
        output = model(images)
    expected = (output if isinstance(output, torch.Tensor) else output[0]).numpy()
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= TOLERANCE:
        raise DeployError(f"the ONNX network differs from the trained one by {difference:.1e} of its largest output")
    with replacing(target) as file:
        file.write(content)
    return target
