"""The network of a run: loaded again, as plain weights, or as ONNX."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spatialgrad.train.config import TrainConfig
from spatialgrad.train.errors import CheckpointError, ConfigError, DeployError
from spatialgrad.train.jsonfiles import replacing
from spatialgrad.train.methods import find_method
from spatialgrad.train.optimizers import build_optimizer
from spatialgrad.train.run import ONNX, WEIGHTS, Run
from spatialgrad.train.tasks import find_task
from spatialgrad.utils.text import describe_error

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
    return load_run(Path(folder), merged=merged).model


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
    method = find_method(config.method.name)(config)
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
    """Write the weights of a run's merged network, and what its inputs and outputs are.

    The file holds `state_dict`, and `preprocessing`: mean and standard deviation of each channel for pixels in [0, 1],
    height and width of the images, and the names of the classes. It is read by `torch.load` with `weights_only=True`.

    Args:
        folder: Of the run.
        path: The file to write; by default `model.pt` in the folder.
    """
    target = Path(folder) / WEIGHTS if path is None else Path(path)
    loaded = load_run(Path(folder))
    with replacing(target) as file:
        torch.save({"state_dict": loaded.model.state_dict(), "preprocessing": loaded.preprocessing}, file)
    return target


def export_onnx(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write a run's merged network as ONNX for any batch size, and compare its outputs with the network's.

    The model's metadata have the preprocessing of `export_weights`, each value as JSON.

    Args:
        folder: Of the run.
        path: The file to write; by default `model.onnx` in the folder.

    Raises:
        ConfigError: If a required package is missing.
        DeployError: If the network cannot be exported, or the outputs differ.
    """
    target = Path(folder) / ONNX if path is None else Path(path)
    check_onnx()
    proto = to_onnx(load_run(Path(folder)))
    with replacing(target) as file:
        file.write(proto.SerializeToString())
    return target


def check_onnx() -> None:
    """Raise a `ConfigError` if a package that ONNX needs is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            raise ConfigError(f"ONNX needs {name}: pip install 'spatialgrad[onnx]'")


def to_onnx(network: DeployedNetwork) -> Any:
    """A network as an ONNX model for any batch size, whose outputs have been compared with the network's.

    Raises:
        DeployError: If the network cannot be exported, or the outputs differ.
    """
    import onnx

    model = copy.deepcopy(network.model).cpu().float().eval()
    # Two images: a batch size of one would be exported as a constant.
    images = torch.randn(2, *network.input_size, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        # The exporter itself uses deprecated parts of torch.
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                model,
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
                f"torch.onnx.export failed for the network of {network.name} ({_reason(error)}). `spatialgrad export` "
                "without --onnx and --int8 writes its weights."
            ) from error
    if program is None:
        raise DeployError("torch.onnx.export returned nothing")
    proto = program.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # where each operator is in the source, with the paths of this machine
    set_metadata(proto, network.preprocessing)
    onnx.checker.check_model(proto)
    found = start_session(proto).run(None, {"images": images.numpy()})[0]
    with torch.no_grad():
        output = model(images)
    expected = (output if isinstance(output, torch.Tensor) else output[0]).numpy()
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference <= TOLERANCE:
        raise DeployError(
            f"the outputs of the ONNX network differ from the trained one's by {difference:.1e} of the largest output"
        )
    return proto


def set_metadata(proto: Any, values: Mapping[str, Any]) -> None:
    """Make values the metadata of an ONNX model, each as JSON."""
    import onnx

    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in values.items()})


def start_session(proto: Any, *, threads: int = 0) -> Any:
    """A session of onnxruntime on the CPU.

    Args:
        proto: The ONNX model.
        threads: Number of threads; by default onnxruntime's choice.

    Raises:
        DeployError: If onnxruntime cannot run the model.
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors; warnings are about its own optimizations
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class in common
        opset = max((each.version for each in proto.opset_import if not each.domain), default=0)
        raise DeployError(
            f"onnxruntime {onnxruntime.__version__} cannot run the network, which has opset {opset} "
            f"({describe_error(error)}); try a newer onnxruntime"
        ) from error


@dataclass(frozen=True)
class DeployedNetwork:
    """A merged network, and what its inputs are."""

    name: str
    """Of the run."""
    model: nn.Module
    input_size: tuple[int, ...]
    preprocessing: dict[str, Any]


def load_run(folder: Path, *, merged: bool = True) -> DeployedNetwork:
    """The network of a run, from its newest checkpoint; see `load_model`."""
    run = Run.open(folder)
    config, state = run.config, run.checkpoint()
    try:
        network = state["network"]
        num_classes, input_size = network["num_classes"], tuple(network["input_size"])

        def build() -> nn.Module:
            return find_task(config.task).create_network(config, num_classes=num_classes, input_size=input_size)

        model = rebuild_model(config, build, state, input_size)
    except ConfigError:
        raise  # about the network itself, such as a library that is not installed here
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint in {folder} does not fit the network of its config ({error})") from error
    if merged:
        model = find_method(config.method.name)(config).finish(model).model
    height, width = input_size[-2:]
    preprocessing = {**network["preprocessing"], "height": height, "width": width}
    return DeployedNetwork(name=run.name, model=model.eval(), input_size=input_size, preprocessing=preprocessing)


def _reason(error: BaseException) -> str:
    """The first error of a chain: the exporter's own is a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return describe_error(error)
