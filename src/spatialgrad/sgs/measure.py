"""Feed the input maps of many convolutions to their estimators: the same batches once per pass, on all processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spatialgrad.sgs.dependence.estimator import Estimator
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.layers import observing
from spatialgrad.torch_utils.distributed import all_reduce_, highest
from spatialgrad.torch_utils.loaders import Forward, Replay, default_forward, fingerprint, move_to
from spatialgrad.torch_utils.modules import (
    Convolution,
    for_one_process,
    gathering,
    keeping_buffers,
    quiet_evaluation,
    unwrap_model,
)

# What a process tells the others before each batch.
_DONE, _READY, _FAILED = 0, 1, 2


def measure_dependence(
    model: nn.Module,
    convolutions: Mapping[str, Sequence[Convolution]],
    make_estimator: Callable[[Convolution], Estimator],
    data: Any,
    *,
    batches: int | None = None,
    forward: Forward | None = None,
    seed: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Tensor]:
    """Run a model over the same few batches and measure the spatial dependence of its convolutions' inputs.

    Nothing but the estimators changes: the model runs in evaluation mode without gradients, and its flags, the
    random states and the loader's order are put back.

    Args:
        model: The model; distributed and compiled wrappers are looked through.
        convolutions: The modules to observe by name; several modules under one name are pooled: pixel by pixel where
            they look at the same neighbours, as so many channels more where they do not.
        make_estimator: Gives a fresh estimator for a convolution.
        data: A loader, a list of batches, or one batch.
        batches: How many batches to take; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; see `default_forward`.
        seed: What to draw the batches from, instead of the present random states.
        group: The processes to agree with; by default all of them.

    Returns:
        S by name, for every convolution that was called. It is the same on every process.
    """
    module = unwrap_model(model)
    feed = _Feed(for_one_process(model), forward or default_forward, group)
    groups = _groups_of_one_geometry(convolutions, make_estimator)
    with feed.announcing_failure():
        replay = Replay(data, batches, seed=seed)
    with replay, quiet_evaluation(module), keeping_buffers(module), gathering(module) as gather:
        for _ in range(max(part.estimator.num_passes for part in groups)):
            with observing({conv: part.observe for part in groups for conv in part.convolutions}):
                feed.run(replay, gather)
            all_reduce_([partial for part in groups for partial in part.estimator.partials()], group)
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

    def __init__(self, module: nn.Module, forward: Forward, group: dist.ProcessGroup | None) -> None:
        self.device = next(module.parameters()).device
        self._module, self._forward, self._group = module, forward, group
        self._passes: list[list[Tensor]] = []

    @contextmanager
    def announcing_failure(self) -> Iterator[None]:
        """Whatever fails in here fails on all processes: the others are waiting for this one's next word."""
        try:
            yield
        except Exception:
            highest(_FAILED, self.device, self._group)
            raise

    def run(self, replay: Replay, gather: Callable[[], None]) -> None:
        """One pass over the batches of every process."""
        prints: list[Tensor] = []
        source: Iterator[Any] | None = None
        while True:
            with self.announcing_failure():
                source = iter(replay) if source is None else source
                batch = next(source, None)
            status = highest(_DONE if batch is None else _READY, self.device, self._group)
            if status == _FAILED:
                raise RuntimeError("Another process failed while it measured its batches; see its error.")
            if status == _DONE:
                break
            gather()
            if batch is not None:
                with self.announcing_failure():
                    prints.append(fingerprint(batch))
                    self._forward(self._module, move_to(batch, self.device))
        if highest(len(prints), self.device, self._group) == 0:
            raise ValueError("The loader is empty: there is no batch to measure.")
        self._passes.append(prints)

    def warn(self, batches: int) -> None:
        """Say what was odd about this process's batches; last, as a warning may be turned into an error."""
        first, last = self._passes[0], self._passes[-1]
        if 0 < len(first) < batches:
            warnings.warn(f"The loader had {len(first)} batches, {batches} were asked for.", stacklevel=4)
        same = len(first) == len(last) and all(map(_same, first, last))
        if not same:
            warnings.warn(
                "The loader gave other batches on its second pass: it draws from a random state of its own, so the "
                "statistics are slightly off, and the batches of the training after it are others than without. Pass a "
                "list of batches instead, such as list(itertools.islice(loader, 2)).",
                stacklevel=4,
            )


@dataclass
class _Group:
    """Convolutions that look at the same neighbours of inputs with as many channels, and what measures them."""

    name: str
    convolutions: list[Convolution]
    estimator: Estimator
    called: bool = False

    def observe(self, maps: Tensor) -> None:
        """Hand an input on, with the name of its layer should anything go wrong."""
        conv = self.convolutions[0]
        num_dims = len(conv.kernel_size)
        wrong_shape = maps.dim() not in (num_dims + 1, num_dims + 2) or maps.shape[-num_dims - 1] != conv.in_channels
        if wrong_shape or maps.numel() == 0:
            return  # what is wrong with the shape, the convolution itself says best
        self.called = True
        try:
            self.estimator.observe(maps.detach() if maps.dim() == num_dims + 2 else maps.detach().unsqueeze(0))
        except Exception as error:
            raise ValueError(f"Cannot measure the input of {self.name!r}: {error}") from error

    def end_pass(self) -> None:
        try:
            self.estimator.end_pass()
        except ValueError as error:
            raise ValueError(f"Cannot measure the input of {self.name!r}: {error}.") from error


def _groups_of_one_geometry(
    convolutions: Mapping[str, Sequence[Convolution]], make_estimator: Callable[[Convolution], Estimator]
) -> list[_Group]:
    groups = []
    for name, convs in convolutions.items():
        alike: dict[tuple[Window, int], list[Convolution]] = {}
        for conv in convs:
            alike.setdefault((Window.of_convolution(conv), conv.in_channels), []).append(conv)
        groups += [_Group(name, members, make_estimator(members[0])) for members in alike.values()]
    return groups


def _share_calls(groups: list[_Group], device: torch.device, group: dist.ProcessGroup | None) -> None:
    """A convolution that any process has called counts as called."""
    flags = torch.tensor([part.called for part in groups], dtype=torch.int32, device=device)
    all_reduce_([(flags, "max")], group)
    for part, flag in zip(groups, flags.tolist(), strict=True):
        part.called = bool(flag)


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal, where a value that is not a number equals another one."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
