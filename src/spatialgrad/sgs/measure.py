"""Measuring: run a model over the same few batches, on all processes, and feed its convolutions' estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation
from spatialgrad.sgs.dependence.estimator import DependenceFunction, Estimator, EstimatorFactory, FunctionEstimator
from spatialgrad.sgs.dependence.histogram import check_bins
from spatialgrad.sgs.dependence.mutual_information import mutual_information_factory
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.layers import observing
from spatialgrad.torch_utils.distributed import all_reduce_, highest
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
) -> dict[str, Tensor]:
    """Run a model over the same few batches and measure the spatial dependence of its convolutions' inputs.

    Nothing but the estimators changes: the model runs in evaluation mode without gradients, and its flags and buffers,
    the random states and the loader's order are restored.

    Args:
        model: The model to run, without wrappers that talk to other processes; see `for_one_process`.
        convolutions: The modules to observe by name. Several modules under one name are pooled: as further samples
            where they look at the same neighbours, as further channels where they do not.
        make_estimator: Builds an estimator; see `estimator_factory`.
        data: A loader, a list of batches, or one batch.
        batches: Number of batches; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; see `default_forward`.
        seed: Seed for drawing the batches, instead of the current random states.
        group: The processes that take part; by default all of them.

    Returns:
        S by name, for every convolution that was called; the same on every process.
    """
    feed = _Feed(model, forward or default_forward, group)
    groups = _groups_of_one_geometry(convolutions, make_estimator)
    with feed.announcing_failure():
        replay = Replay(data, batches, seed=seed)
    with replay, quiet_evaluation(model), keeping_buffers(model), gathering(model) as gather:
        for _ in range(max(part.estimator.num_passes for part in groups)):
            with observing({conv: part.observe for part in groups for conv in part.convolutions}):
                feed.run(replay, gather)
            all_reduce_([item for part in groups for item in part.estimator.partials()], group)
            for part in groups:
                part.end_pass()
        _share_calls(groups, feed.device, group)
        dependence = {
            name: torch.cat([part.estimator.dependence() for part in parts])
            for name in convolutions
            if (parts := [part for part in groups if part.name == name and part.called])
        }
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


@dataclass
class _Group:
    """Convolutions that look at the same neighbours of inputs with the same number of channels, and their estimator."""

    name: str
    convolutions: list[Convolution]
    estimator: Estimator
    called: bool = False

    def observe(self, maps: Tensor) -> None:
        """Pass an input on to the estimator; errors name the layer."""
        conv = self.convolutions[0]
        num_dims = len(conv.kernel_size)
        wrong_shape = maps.dim() not in (num_dims + 1, num_dims + 2) or maps.shape[-num_dims - 1] != conv.in_channels
        if wrong_shape or maps.numel() == 0:
            return  # the convolution itself gives the best error for a wrong shape
        self.called = True
        try:
            self.estimator.observe(maps.detach() if maps.dim() == num_dims + 2 else maps.detach().unsqueeze(0))
        except Exception as error:
            raise ValueError(f"Cannot measure the input of {self.name!r}: {error}") from error

    def end_pass(self) -> None:
        """Close the estimator's pass; errors name the layer."""
        try:
            self.estimator.end_pass()
        except ValueError as error:
            raise ValueError(f"Cannot measure the input of {self.name!r}: {error}.") from error


def _groups_of_one_geometry(
    convolutions: Mapping[str, Sequence[Convolution]], make_estimator: EstimatorFactory
) -> list[_Group]:
    groups = []
    for name, convs in convolutions.items():
        alike: dict[tuple[Window, int], list[Convolution]] = {}
        for conv in convs:
            alike.setdefault((Window.of_convolution(conv), conv.in_channels), []).append(conv)
        groups += [
            _Group(name, members, make_estimator(channels, window, members[0].weight.device))
            for (window, channels), members in alike.items()
        ]
    return groups


def _share_calls(groups: list[_Group], device: torch.device, group: dist.ProcessGroup | None) -> None:
    """Count a convolution as called if any process has called it."""
    flags = torch.tensor([part.called for part in groups], dtype=torch.int32, device=device)
    all_reduce_([(flags, "max")], group)
    for part, flag in zip(groups, flags.tolist(), strict=True):
        part.called = bool(flag)


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two fingerprints are equal; NaN equals NaN."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
