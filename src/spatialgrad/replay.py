"""The same few batches, as often as asked, without keeping them and without a trace in the loader or the RNGs."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

DEFAULT_BATCHES = 2


class Replay:
    """Iterates over the first batches of some data, the same ones each time.

    A loader is not kept in memory: its order and its augmentation follow from the random states at the start, which
    are put back before every pass and at the end.

    Args:
        data: A loader or any other iterable of batches, a list of batches, or one batch (a tensor or a dict).
        batches: How many batches to take; by default all of a list, and 2 of anything else.
    """

    def __init__(self, data: Any, batches: int | None = None) -> None:
        if batches is not None and batches < 1:
            raise ValueError(f"Invalid batches: {batches}; at least one is needed.")
        if isinstance(data, Tensor | Mapping):
            data = [data]
        if not isinstance(data, Iterable):
            raise TypeError(f"Expected a loader, a list of batches or a batch, got {type(data).__name__}.")
        if batches is None:
            batches = max(1, len(data)) if isinstance(data, list) else DEFAULT_BATCHES
        self.batches = batches
        self._source: Iterable[Any] = data
        if isinstance(data, Iterator):
            # What can be read only once has to be kept.
            self._source = list(islice(data, batches))
        elif isinstance(data, DataLoader) and data.num_workers > 0:
            self._source = _private_copy(data, batches)
        self._state = _RandomState(data)

    def __iter__(self) -> Iterator[Any]:
        self._state.restore()
        return islice(iter(self._source), self.batches)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *exception: object) -> None:
        self._state.restore()


def move_to(batch: Any, device: torch.device) -> Any:
    """A batch with all of its tensors on a device; other things stay as they are."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move_to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_to(item, device) for item in batch)
    return batch


def fingerprint(batch: Any) -> Tensor:
    """A checksum over the tensors of a batch, by which a batch can be recognised without keeping it."""
    if isinstance(batch, Tensor):
        return batch.detach().sum(dtype=torch.float64 if batch.device.type != "mps" else None).reshape(1).cpu()
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    parts = [fingerprint(item) for item in batch] if isinstance(batch, list | tuple) else []
    return torch.cat(parts) if parts else torch.zeros(0)


class _RandomState:
    """Every random state that a pass over a loader and a forward pass may draw from."""

    def __init__(self, loader: Any) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        self._generators = [(generator, generator.get_state()) for generator in _generators_of(loader)]

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._mps is not None:
            torch.mps.set_rng_state(self._mps)
        for generator, state in self._generators:
            generator.set_state(state)


def _generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of a loader, its sampler and its batch sampler."""
    places = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    places.append(getattr(places[-1], "sampler", None))
    found = [getattr(place, "generator", None) for place in places if place is not None]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _private_copy(loader: DataLoader[Any], batches: int) -> DataLoader[Any]:
    """The same loader with workers of its own, no more than there are batches, which end with each pass.

    Persistent workers hold an iterator and random states that belong to the training loop.
    """
    private = copy.copy(loader)
    changes = {
        "_iterator": None,
        "persistent_workers": False,
        "num_workers": min(loader.num_workers, batches),
    }
    # DataLoader refuses ordinary assignment to some of its attributes after construction.
    private.__dict__.update(changes)
    return private
