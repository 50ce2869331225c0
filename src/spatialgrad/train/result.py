"""The result of a run and its cost: `result.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from spatialgrad.train.errors import DamagedFileError

PHASES = ("training", "evaluation", "update", "checkpoint")
"""What the time of a run is divided into."""
INT8_METRICS = {"int8": True, "int8_per_tensor": False}
"""Suffixes of the metrics of a quantized network, and whether every output channel has a scale of its own."""
Metrics = dict[str, float | None]
"""Values by name; None for one that is not finite, which JSON cannot express."""


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """Time of a training step: processor time on CPUs, device time elsewhere.

    Updates of the method, evaluations, checkpoints and the first steps are not counted.
    """

    median: float
    low: float
    """10th percentile."""
    high: float
    """90th percentile."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run and its cost."""

    model: str
    dataset: str
    method: str
    seed: int
    epochs: int
    steps: int
    metric: str
    """Name of the headline metric, such as accuracy; the method's own for some methods."""
    value: float
    """The headline metric of the deployed network on the test images after the last epoch."""
    test: Metrics
    """All metrics of the deployed network."""
    best: float
    """The best headline metric of all evaluated epochs; `value` if it is the method's own."""
    trained: Metrics
    """The task's metrics of the network before merging; those of `test` if nothing was merged."""
    merge_difference: float | None
    """Largest relative change of a layer's output by merging; None if nothing was merged."""
    seconds: float
    """Wall-clock time of all phases, over all sessions."""
    training_seconds: float
    evaluation_seconds: float
    update_seconds: float
    """Time of the method's updates: measuring scalings, or growing branches."""
    checkpoint_seconds: float
    parameters: int
    """Of the deployed network."""
    macs: int
    """Multiply-accumulates of one image through the deployed network."""
    training_parameters: int
    """Of the network at the end of training, with its branches."""
    training_macs: int
    peak_memory_bytes: int
    """On a GPU, the memory allocated on it; on a CPU, the peak size of the process. Both include the images that are
    kept there, which are the same for all methods."""
    step_seconds: StepSeconds | None = None
    """None if the training had too few steps to measure it."""
    memory_format: str | None = None
    """Layout of the kernels in memory: contiguous or channels_last."""
    identity: str | None = None
    """Digest of what determines the result; see `spatialgrad.train.identity`."""
    weight_ranges: dict[str, float] | None = None
    """Largest absolute weight of each layer of the deployed network, BatchNorm included, in standard deviations of its
    weights; None unless the network was also evaluated in INT8."""
    no_effect: str | None = None
    """Why the method never acted, so that the run is one of the baseline; None if it did."""


def to_result(values: Mapping[str, Any], source: str) -> Result:
    """The result that JSON values describe; values that are not part of it are ignored.

    Args:
        values: Of `result.json`.
        source: Where they come from, for the error.

    Raises:
        DamagedFileError: If one is missing or invalid.
    """
    try:
        return msgspec.convert(values, Result)
    except msgspec.ValidationError as error:
        raise DamagedFileError(f"{source} is damaged ({error})") from error
