"""The network of a run: loaded again, as plain weights, or as ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spatialgrad.models.external import describe_error
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.engine.optim import build_optimizer
from spatialgrad.train.errors import CheckpointError, ConfigError, DeployError
from spatialgrad.train.methods import METHODS
from spatialgrad.train.runs.checkpoint import check_identity, load_checkpoint, without_checkpoint
from spatialgrad.train.runs.folder import ONNX, WEIGHTS, read_config, replacing
from spatialgrad.train.tasks import TASKS

TOLERANCE = 1e-3
"""Largest difference between the outputs of the exported and the trained network, relative to the largest output."""


def load_model(folder: Path | str, *, merged: bool = True) -> nn.Module:
    """Load the network of a run from its newest checkpoint, in evaluation mode on the CPU; its data set is not needed.

    Args:
        folder: Of the run, finished or not.
        merged: Merge the branches that it was trained with.

    Raises:
        ConfigError: If the folder holds no run.
        CheckpointError: If the run has no checkpoint that can be read.
    """
    return _load(Path(folder), merged=merged)[0]


def rebuild_model(
    config: TrainConfig, build: Callable[[], nn.Module], state: Mapping[str, Any], input_size: tuple[int, ...]
) -> nn.Module:
    """The network of a checkpoint as it was in training, on the CPU.

    Args:
        config: Of the run.
        build: Builds a new network, such as `Task.build_model`.
        state: Of the checkpoint.
        input_size: Shape of one input.
    """
    method = METHODS[config.method.name](config)
    method.input_size = input_size
    torch.manual_seed(config.seed)
    model = build()
    method.prepare_(model)
    if method.grows:
        method.attach(model, build_optimizer(config.optimizer, model))
        method.load_state_dict(state["method"])
    model.load_state_dict(state["model"])
    return model


def export_weights(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write the weights of a run's merged network as a state_dict.

    Args:
        folder: Of the run.
        path: The file to write; by default `model.pt` in the folder.
    """
    target = Path(folder) / WEIGHTS if path is None else Path(path)
    model, _ = _load(Path(folder))
    with replacing(target) as file:
        torch.save(model.state_dict(), file)
    return target


def export_onnx(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write a run's merged network as ONNX for any batch size, and compare its outputs with the network's.

    Args:
        folder: Of the run.
        path: The file to write; by default `model.onnx` in the folder.

    Raises:
        ConfigError: If a required package is missing.
        DeployError: If the network cannot be exported, or the outputs differ.
    """
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ImportError as error:
        raise ConfigError(f"ONNX needs {error.name}: pip install onnx onnxscript onnxruntime") from error
    target = Path(folder) / ONNX if path is None else Path(path)
    model, input_size = _load(Path(folder))
    # Two images: a batch size of one would be exported as a constant.
    images = torch.randn(2, *input_size, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        # The exporter itself uses deprecated parts of torch.
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                model.float(),
                (images,),
                dynamo=True,
                input_names=["images"],
                output_names=["output"],
                # By position: the network's own name for its input does not matter.
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
        except Exception as error:  # the exporter runs the network's own code, which may not suit it
            raise DeployError(
                f"torch.onnx.export failed for the network in {folder} ({_reason(error)}). Without --onnx, its weights "
                "are written."
            ) from error
    if program is None:
        raise DeployError("torch.onnx.export returned nothing")
    content = program.model_proto.SerializeToString()
    onnx.checker.check_model(content)
    runtime = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = runtime.run(None, {"images": images.numpy()})[:1]
    with torch.no_grad():
        output = model(images)
    expected = (output if isinstance(output, torch.Tensor) else output[0]).numpy()
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= TOLERANCE:
        raise DeployError(
            f"the outputs of the ONNX network differ from the trained one's by {difference:.1e} of the largest output"
        )
    with replacing(target) as file:
        file.write(content)
    return target


def _load(folder: Path, *, merged: bool = True) -> tuple[nn.Module, tuple[int, ...]]:
    """As `load_model`, with the shape of one input."""
    config = replace(read_config(folder), out=folder)
    state = load_checkpoint(folder)
    if state is None:
        raise CheckpointError(without_checkpoint(folder))
    check_identity(state, config)
    num_classes, input_size = _network(state, folder)

    def build() -> nn.Module:
        return TASKS[config.task].create_network(config, num_classes=num_classes, input_size=input_size)

    try:
        model = rebuild_model(config, build, state, input_size)
    except ConfigError:
        raise  # about the network itself, such as a library that is not installed here
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint in {folder} does not fit the network of its config ({error})") from error
    if merged:
        model = METHODS[config.method.name](config).finish(model).model
    return model.eval(), input_size


def _reason(error: BaseException) -> str:
    """The first error of a chain: the exporter's own is a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return describe_error(error)


def _network(state: Mapping[str, Any], folder: Path) -> tuple[int, tuple[int, ...]]:
    """The number of classes and the shape of one input, as a checkpoint records them."""
    recorded: Any = state.get("network")
    try:
        num_classes, input_size = int(recorded["num_classes"]), tuple(int(side) for side in recorded["input_size"])
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint in {folder} does not record the number of classes and the size of the images; train the "
            "run again in another folder (--out)"
        ) from error
    return num_classes, input_size
