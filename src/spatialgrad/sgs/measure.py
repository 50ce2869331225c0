"""Measuring: run a model over the same few batches, on all processes, and feed its convolutions' estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation
from spatialgrad.sgs.dependence.estimator import DependenceFunction, EstimatorFactory, FunctionEstimator
from spatialgrad.sgs.dependence.histogram import check_bins
from spatialgrad.sgs.dependence.mutual_information import mutual_information_factory
from spatialgrad.sgs.layers import observing
from spatialgrad.sgs.measurement import Measurement
from spatialgrad.torch_utils.distributed import highest
from spatialgrad.torch_utils.loaders import Forward, Replay, default_forward, fingerprint, move_to
from spatialgrad.torch_utils.modules import Convolution, gathering, keeping_buffers, quiet_evaluation

Dependence = Literal["mutual-information", "autocorrelation"]

# What a process tells the others before each batch.
_DONE, _READY, _FAILED = 0, 1, 2


def estimator_factory(
    dependence: Dependence | DependenceFunction, *, bins: int | str, drop_near: bool
) -> EstimatorFactory:
    """Return what builds the estimators of a kind of dependence."""
    if dependence == "mutual-information":
        return mutual_information_factory(bins=bins, drop_near=drop_near)
    if dependence == "autocorrelation":
        return Autocorrelation
    return partial(FunctionEstimator, dependence)


def check_dependence(dependence: Any, bins: int | str) -> None:
    """Raise `ValueError` unless `dependence` and `bins` describe a measure, or no measure at all."""
    if not (dependence in ("mutual-information", "autocorrelation", None) or callable(dependence)):
        raise ValueError(
            f"Invalid dependence: {dependence!r}; choose 'mutual-information', 'autocorrelation', a function or None."
        )
    check_bins(bins)


def measure_dependence(
    model: nn.Module,
    convolutions: Mapping[str, Sequence[Convolution]],
    make_estimator: EstimatorFactory,
    data: Any,
    *,
    batches: int | None = None,
    forward: Forward | None = None,
    seed: int | None = None,
    group: dist.ProcessGroup | None = None,
    memory: int | None = None,
) -> dict[str, Tensor]:
    """Run a model over the same few batches and measure the spatial dependence of its convolutions' inputs.

    Nothing but the estimators changes: the model runs in evaluation mode without gradients, and its flags and buffers,
    the random states and the loader's order are restored.

    Args:
        model: The model to run, without wrappers that talk to other processes; see `for_one_process`.
        convolutions: The modules to observe by name; see `Measurement`.
        make_estimator: Builds an estimator; see `estimator_factory`.
        data: A loader, a list of batches, or one batch.
        batches: Number of batches; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; see `default_forward`.
        seed: Seed for drawing the batches, instead of the current random states.
        group: The processes that take part; by default all of them.
        memory: Bytes that the counts may take; see `Measurement`. Layers that take turns need further passes.

    Returns:
        S by name, for every convolution that was called; the same on every process.
    """
    feed = _Feed(model, forward or default_forward, group)
    measurement = Measurement(convolutions, make_estimator, group=group, memory=memory)
    with feed.announcing_failure():
        replay = Replay(data, batches, seed=seed)
    with replay, quiet_evaluation(model), keeping_buffers(model), gathering(model) as gather:
        while not measurement.finished:
            with observing(measurement.observers()):
                feed.run(replay, gather)
            measurement.combine()
            measurement.end_pass()
        dependence = measurement.dependence()
    feed.warn(replay.batches)
    return dependence


class _Feed:
    """Runs batches through a model in step with all other processes."""

    def __init__(self, model: nn.Module, forward: Forward, group: dist.ProcessGroup | None) -> None:
        self.device = next(model.parameters()).device
        self._model, self._forward, self._group = model, forward, group
        self._passes: list[list[Tensor]] = []

    @contextmanager
    def announcing_failure(self) -> Iterator[None]:
        """Make an error in here fail on all processes: the others are waiting for this one's next message."""
        try:
            yield
        except Exception:
            highest(_FAILED, self.device, self._group)
            raise

    def run(self, replay: Replay, gather: Callable[[], None]) -> None:
        """Make one pass over the batches of every process."""
        prints: list[Tensor] = []
        source: Iterator[Any] | None = None
        while True:
            with self.announcing_failure():
                source = iter(replay) if source is None else source
                batch = next(source, None)
            status = highest(_DONE if batch is None else _READY, self.device, self._group)
            if status == _FAILED:
                raise RuntimeError("Another process failed while measuring its batches; see its error.")
            if status == _DONE:
                break
            gather()
            if batch is not None:
                with self.announcing_failure():
                    prints.append(fingerprint(batch))
                    self._forward(self._model, move_to(batch, self.device))
        if highest(len(prints), self.device, self._group) == 0:
            raise ValueError("The loader is empty: there is no batch to measure.")
        self._passes.append(prints)

    def warn(self, batches: int) -> None:
        """Warn about this process's batches; called last, as warnings may be turned into errors."""
        first, last = self._passes[0], self._passes[-1]
        if 0 < len(first) < batches:
            warnings.warn(f"The loader has only {len(first)} of the requested {batches} batches.", stacklevel=4)
        same = len(first) == len(last) and all(map(_same, first, last))
        if not same:
            warnings.warn(
                "The loader returned different batches on its second pass: it draws from a random state of its own. "
                "The statistics are slightly off, and the training batches after this call will differ from a run "
                "without it. Pass a list of batches instead, such as list(itertools.islice(loader, 2)).",
                stacklevel=4,
            )


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two fingerprints are equal; NaN equals NaN."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
