"""Feed the input maps of many convolutions to their estimators: the same batches once per pass, on all processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spatialgrad.capture import Convolution, for_one_process, gathering, observing, quiet_evaluation, unwrap_model
from spatialgrad.dependence.estimator import Estimator
from spatialgrad.distributed import all_reduce_, highest
from spatialgrad.replay import Replay, fingerprint, move_to

Forward = Callable[[nn.Module, Any], Any]

# What a process tells the others before each batch.
_DONE, _READY, _FAILED = 0, 1, 2


def default_forward(model: nn.Module, batch: Any) -> Any:
    """Call a model as its training loop most likely does: ``model(**batch)``, ``model(batch[0])``, ``model(batch)``."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(batch[0])
    return model(batch)


def measure_dependence(
    model: nn.Module,
    convolutions: Mapping[str, Sequence[Convolution]],
    estimators: Mapping[str, Estimator],
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
        convolutions: The modules to observe by name; several modules under one name are pooled.
        estimators: A fresh estimator for each name.
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
    called: set[str] = set()
    with feed.announcing_failure():
        replay = Replay(data, batches, seed=seed)
    with replay, quiet_evaluation(module), gathering(module) as gather:
        for _ in range(max(estimator.num_passes for estimator in estimators.values())):
            observers = {
                conv: _observer(name, conv, estimators[name], called)
                for name, convs in convolutions.items()
                for conv in convs
            }
            with observing(observers):
                feed.run(replay, gather)
            all_reduce_([part for e in estimators.values() for part in e.partials()], group)
            for name, estimator in estimators.items():
                try:
                    estimator.end_pass()
                except ValueError as error:
                    raise ValueError(f"Cannot measure the input of {name!r}: {error}.") from error
        reached = _called_anywhere(list(estimators), called, feed.device, group)
        dependence = {name: estimators[name].dependence() for name in reached}
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
        if len(first) != len(last) or not all(map(torch.equal, first, last)):
            warnings.warn(
                "The loader gave other batches on its second pass, so the statistics are slightly off: pass a list "
                "of batches instead, such as list(itertools.islice(loader, 2)).",
                stacklevel=4,
            )


def _observer(name: str, conv: Convolution, estimator: Estimator, called: set[str]) -> Callable[[Tensor], None]:
    num_dims = len(conv.kernel_size)

    def observe(maps: Tensor) -> None:
        wrong_shape = maps.dim() not in (num_dims + 1, num_dims + 2) or maps.shape[-num_dims - 1] != conv.in_channels
        if wrong_shape:
            return  # what is wrong with the shape, the convolution itself says best
        called.add(name)
        try:
            estimator.observe(maps.detach() if maps.dim() == num_dims + 2 else maps.detach().unsqueeze(0))
        except ValueError as error:
            raise ValueError(f"Cannot measure the input of {name!r}: {error}") from error

    return observe


def _called_anywhere(
    names: list[str], called: set[str], device: torch.device, group: dist.ProcessGroup | None
) -> list[str]:
    flags = torch.tensor([name in called for name in names], dtype=torch.int32, device=device)
    all_reduce_([(flags, "max")], group)
    return [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]
