"""INT8: static quantization of a run's merged network by onnxruntime, and what it costs in accuracy.

Convolutions and matrix products get 8-bit weights and activations between QuantizeLinear and DequantizeLinear nodes
(QDQ). The ranges of activations are measured on training images without augmentation.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from spatialgrad.data.batches import eval_batches
from spatialgrad.data.splits import random_indices
from spatialgrad.train.console import show_metric
from spatialgrad.train.errors import ConfigError, DeployError
from spatialgrad.train.export import DeployedNetwork, check_onnx, load_run, set_metadata, start_session, to_onnx
from spatialgrad.train.flags import check_name
from spatialgrad.train.jsonfiles import replacing
from spatialgrad.train.result import INT8_METRICS
from spatialgrad.train.run import ONNX, Run
from spatialgrad.train.tasks import TASKS
from spatialgrad.train.tasks.base import Sums, Task, add_
from spatialgrad.utils.text import describe_error

CalibrationMethod = Literal["minmax", "entropy"]
CALIBRATION_IMAGES = 512
BATCH = 64
"""Number of images in a batch of the calibration, and for the errors of layers."""
TIMED_ROUNDS = 30
LAYERS = ("Conv", "Gemm", "MatMul")
"""Operators whose weights and outputs are compared."""


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """The error that quantization makes in a layer, as signal-to-noise ratios in decibels."""

    output: float
    """Of the output of the layer in the quantized network, which includes the errors of all layers before it."""
    weights: float
    weight_range: float
    """Largest absolute weight, in standard deviations of the weights."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A network on the test images, on disk and on the processor."""

    metrics: Mapping[str, float]
    num_bytes: int
    seconds: float
    """Processor time of one image on one thread."""


@dataclass(frozen=True, kw_only=True)
class Int8Export:
    """An exported INT8 network beside the float one."""

    float_path: Path
    int8_path: Path
    float: Measured
    int8: Measured
    layers: Mapping[str, LayerError]
    """By qualified name."""
    calibration: Mapping[str, Any]
    """What the ranges were measured on; also in the metadata of the INT8 file."""
    headline: str
    """Name of the main metric."""
    tested: str
    """Which images the metrics were measured on."""


def export_int8(
    folder: Path | str,
    path: Path | str | None = None,
    *,
    calibration_images: int = CALIBRATION_IMAGES,
    calibration: CalibrationMethod = "minmax",
) -> Int8Export:
    """Quantize a run's merged network to INT8, compare it with the float one on the test images, and write both.

    Args:
        folder: Of the run, which needs its data set.
        path: The file of the float network; by default `model.onnx` in the folder. The INT8 network is written beside
            it, as `model.int8.onnx`.
        calibration_images: Number of training images to measure the ranges of activations on; all if there are fewer.
        calibration: `minmax` takes the whole range, `entropy` may cut off rare values. The latter holds all activations
            of all calibration images in memory.

    Raises:
        ConfigError: If a required package is missing, or an argument is invalid.
        DeployError: If the network cannot be exported or quantized. No file is written then.
    """
    check_name("--calibration", calibration, get_args(CalibrationMethod))
    if calibration_images < 1:
        raise ConfigError(f"--calibration-images must be at least 1, got {calibration_images}")
    check_onnx()
    config = Run.open(folder).config
    if config.task != "classification":
        raise ConfigError(f"--int8 is for classification; the run in {folder} is one of {config.task}")
    target = Path(folder) / ONNX if path is None else Path(path)
    network = load_run(Path(folder))
    task = TASKS[config.task](config, torch.device("cpu"))
    images = training_images(task, calibration_images)
    proto = to_onnx(network)
    float_model = prepare(proto)
    int8_model = quantize(float_model, images, method=calibration)
    measured_on = {
        "images": sum(map(len, images)),
        "of": f"training images of {task.description}, without augmentation",
        "method": calibration,
        "weights": "per channel",
    }
    set_metadata(int8_model, {**network.preprocessing, "calibration": measured_on})
    both = measure(task, proto, int8_model)
    layers = layer_errors(float_model, int8_model, images[0])
    int8_target = target.with_name(f"{target.stem}.int8.onnx")
    for file_path, model in ((target, proto), (int8_target, int8_model)):
        with replacing(file_path) as file:
            file.write(model.SerializeToString())
    return Int8Export(
        float_path=target,
        int8_path=int8_target,
        float=both[0],
        int8=both[1],
        layers=layers,
        calibration=measured_on,
        headline=task.headline,
        tested=f"{task.num_test:,} test images of {task.description}",
    )


def describe_export(export: Int8Export, worst: int = 5) -> str:
    """What quantization changed, and the layers with the largest errors.

    Args:
        export: What `export_int8` returns.
        worst: Number of layers.
    """
    before, after, name = export.float, export.int8, export.headline
    first, second = before.metrics[name], after.metrics[name]
    change = f"{100 * (second - first):+.2f} points on {export.tested}"
    rows = [
        ("", "float", "INT8", ""),
        (name, show_metric(name, first), show_metric(name, second), change),
        ("size", f"{before.num_bytes / 1e6:.2f} MB", f"{after.num_bytes / 1e6:.2f} MB", ""),
        ("time", f"{1e3 * before.seconds:.2f} ms", f"{1e3 * after.seconds:.2f} ms", "per image, on one CPU thread"),
    ]
    lines = [f"{title:<10}{one:>10}{other:>10}  {note}".rstrip() for title, one, other, note in rows]
    measured_on = export.calibration
    lines.append(f"calibrated on {measured_on['images']:,} {measured_on['of']} ({measured_on['method']})")
    lines += ["", "layers with the lowest signal-to-noise ratio in their output"]
    order = sorted(export.layers, key=lambda layer: export.layers[layer].output)[:worst]
    width = max((len(layer) for layer in order), default=0)
    for layer in order:
        error = export.layers[layer]
        lines.append(
            f"  {layer:<{width}}  output {error.output:4.1f} dB, weights {error.weights:4.1f} dB, largest weight "
            f"{error.weight_range:.1f} standard deviations"
        )
    return "\n".join([*lines, "", str(export.float_path), str(export.int8_path)])


def int8_metrics(model: nn.Module, task: Task) -> tuple[dict[str, float], dict[str, float]]:
    """The main metric of a network after quantization, and how far the weights of each layer range.

    Returns:
        The metric with each of the suffixes of `INT8_METRICS`; the largest absolute weight of each layer, in standard
        deviations.
    """
    network = DeployedNetwork(name=task.description, model=model, input_size=task.input_size, preprocessing={})
    float_model, images = prepare(to_onnx(network)), training_images(task, CALIBRATION_IMAGES)
    metrics = {}
    for suffix, per_channel in INT8_METRICS.items():
        quantized = quantize(float_model, images, per_channel=per_channel)
        metrics[f"{task.headline}_{suffix}"] = evaluate_onnx(task, quantized)[task.headline]
    return metrics, {name: weight_range(weight) for name, weight in layer_weights(float_model).items()}


def training_images(task: Task, number: int) -> list[np.ndarray]:
    """Batches of random training images without augmentation; the same ones in every call."""
    split = task.dataset.train
    if number < len(split):
        split = split.select(random_indices(len(split), number, seed=0)[1])
    batches = eval_batches(replace(task.dataset, train=split), BATCH, split="train", device=task.device)
    return [images.cpu().numpy() for images, *_ in batches]


def prepare(proto: Any) -> Any:
    """An ONNX model with inferred shapes and BatchNorms folded into convolutions, which quantization needs."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process  # type: ignore[import-untyped]

    with _quantizing() as folder:
        # By way of files: a model that is given as such is changed.
        onnx.save(proto, folder / "float.onnx")
        quant_pre_process(folder / "float.onnx", folder / "prepared.onnx", skip_symbolic_shape=True)
        return onnx.load(folder / "prepared.onnx")


def quantize(
    prepared: Any, images: Sequence[np.ndarray], *, per_channel: bool = True, method: CalibrationMethod = "minmax"
) -> Any:
    """Quantize an ONNX model to INT8.

    Args:
        prepared: What `prepare` returns.
        images: Batches to measure the ranges of activations on.
        per_channel: Whether every output channel has a scale of its own; by default one scale per layer.
        method: How the ranges are chosen.

    Raises:
        DeployError: If onnxruntime cannot quantize it.
    """
    import onnx
    from onnxruntime import quantization  # type: ignore[import-untyped]

    inputs = ({"images": batch} for batch in images)
    methods = {"minmax": quantization.CalibrationMethod.MinMax, "entropy": quantization.CalibrationMethod.Entropy}
    with _quantizing() as folder:
        onnx.save(prepared, folder / "prepared.onnx")
        quantization.quantize_static(
            folder / "prepared.onnx",
            folder / "int8.onnx",
            SimpleNamespace(get_next=lambda: next(inputs, None)),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=per_channel,
            calibrate_method=methods[method],
        )
        return onnx.load(folder / "int8.onnx")


def evaluate_onnx(task: Task, proto: Any) -> dict[str, float]:
    """The metrics of an ONNX model on the test images."""
    model = _OnnxNetwork(start_session(proto, threads=torch.get_num_threads()))
    sums: Sums = {}
    for batch in task.eval_batches():
        add_(sums, task.evaluate(model, batch))
    return task.metrics(sums)


def measure(task: Task, *models: Any) -> list[Measured]:
    """Metrics, size and time of several ONNX models, whose timed rounds are interleaved."""
    sessions = [start_session(model, threads=1) for model in models]
    image = np.zeros((1, *task.input_size), dtype=np.float32)
    times: list[list[float]] = [[] for _ in models]
    for _ in range(TIMED_ROUNDS):
        for session, taken in zip(sessions, times, strict=True):
            session.run(None, {"images": image})  # its weights may have left the cache
            begin = time.thread_time()
            session.run(None, {"images": image})
            taken.append(time.thread_time() - begin)
    return [
        Measured(metrics=evaluate_onnx(task, model), num_bytes=model.ByteSize(), seconds=statistics.median(taken))
        for model, taken in zip(models, times, strict=True)
    ]


def layer_weights(prepared: Any) -> dict[str, np.ndarray]:
    """The weights of convolutions and matrix products, by qualified name of the layer."""
    from onnx import numpy_helper

    stored = {each.name: each for each in prepared.graph.initializer}
    weights = [node.input[1] for node in prepared.graph.node if node.op_type in LAYERS and node.input[1] in stored]
    return {_layer_of(weight): numpy_helper.to_array(stored[weight]) for weight in weights}


def weight_range(weights: np.ndarray) -> float:
    """The largest absolute weight, in standard deviations of the weights."""
    deviation = float(weights.std())
    return float(np.abs(weights).max()) / deviation if deviation else 1.0


def layer_errors(prepared: Any, quantized: Any, images: np.ndarray) -> dict[str, LayerError]:
    """The error of every layer, by qualified name.

    Args:
        prepared: The float model.
        quantized: The same model after `quantize`.
        images: A batch of images.
    """
    import onnx
    from onnxruntime.quantization import qdq_loss_debug  # type: ignore[import-untyped]
    from onnxruntime.quantization.quant_utils import (  # type: ignore[import-untyped]
        DEQUANT_OUTPUT_SUFFIX,
        QUANT_INPUT_SUFFIX,
    )

    with _quantizing() as folder:
        onnx.save(prepared, folder / "prepared.onnx")
        onnx.save(quantized, folder / "int8.onnx")
        pairs = qdq_loss_debug.create_weight_matching(str(folder / "prepared.onnx"), str(folder / "int8.onnx"))
    # A layer's output in both networks: that of its activation, if it was merged into the layer.
    layers = {}
    for node in quantized.graph.node:
        if node.op_type in LAYERS and (name := node.input[1].removesuffix(DEQUANT_OUTPUT_SUFFIX)) in pairs:
            layers[name] = node.output[0].removesuffix(QUANT_INPUT_SUFFIX)
    there = {name for node in quantized.graph.node for name in node.output}
    rounded = [name if (name := f"{each}{DEQUANT_OUTPUT_SUFFIX}") in there else each for each in layers.values()]
    both = zip(_run_to(prepared, [*layers.values()], images), _run_to(quantized, rounded, images), strict=True)
    return {
        _layer_of(name): LayerError(
            output=_decibels(expected, found),
            weights=_decibels(pairs[name]["float"], pairs[name]["dequantized"]),
            weight_range=weight_range(pairs[name]["float"]),
        )
        for name, (expected, found) in zip(layers, both, strict=True)
    }


class _OnnxNetwork(nn.Module):
    """A session of onnxruntime, called as a network."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self._session = session

    def forward(self, images: Tensor) -> Tensor:
        output = self._session.run(None, {"images": images.cpu().numpy()})[0]
        return torch.from_numpy(output).to(images.device)


@contextlib.contextmanager
def _quantizing() -> Iterator[Path]:
    """A folder for onnxruntime's quantization, which reads and writes files, prints, and raises all sorts of errors."""
    logger, printed = logging.getLogger(), io.StringIO()
    level = logger.level
    with tempfile.TemporaryDirectory(prefix="spatialgrad-int8-") as folder:
        try:
            logger.setLevel(logging.ERROR)
            with contextlib.redirect_stdout(printed):
                yield Path(folder)
        except Exception as error:
            raise DeployError(f"onnxruntime cannot quantize the network ({describe_error(error)})") from error
        finally:
            logger.setLevel(level)


def _layer_of(weight: str) -> str:
    """The qualified name of the layer that a weight is of."""
    return weight.removesuffix(".weight")


def _run_to(proto: Any, tensors: Sequence[str], images: np.ndarray) -> list[np.ndarray]:
    """The values of inner tensors of an ONNX model."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(proto)
    known = {each.name for each in model.graph.output}
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in tensors if name not in known
    )
    return list(start_session(model).run(list(tensors), {"images": images}))


def _decibels(expected: np.ndarray, found: np.ndarray) -> float:
    """Signal-to-noise ratio; infinite without noise."""
    noise = float(np.square(expected - found, dtype=np.float64).sum())
    signal = float(np.square(expected, dtype=np.float64).sum())
    return 10 * math.log10(signal / noise) if signal and noise else math.inf
