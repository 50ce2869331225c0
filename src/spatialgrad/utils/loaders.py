"""Loaders and batches: take a few batches without side effects, move them, and run a model on them."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader

from spatialgrad.utils.text import is_count

Forward = Callable[[nn.Module, Any], Any]

DEFAULT_BATCHES = 2


def take_batches(data: Any, batches: int | None, states: RandomStates, *, seed: int | None = None) -> list[Any]:
    """Return the first batches of some data.

    A loader with workers gets workers of its own, so that those of the training keep their iterator.

    Args:
        data: A loader or any other iterable of batches, a list of batches, or one batch (a tensor, an (x, y) tuple
            or a dict). With a list or dict of loaders, each batch is a list or dict with one batch per loader.
        batches: Number of batches; by default all of a list, and 2 of anything else.
        states: Those of `data`, which are seeded if there is a seed.
        seed: Seed for the random states, instead of their current values.
    """
    if batches is not None and not (is_count(batches) and batches >= 1):
        raise ValueError(f"Invalid batches: {batches!r}; it must be an integer of at least 1.")
    if seed is not None:
        states.reseed(seed)
    leaves, structure = tree_flatten(data)
    loaders = [unwrap_loader(leaf) for leaf in leaves]
    if loaders and all(isinstance(loader, DataLoader) for loader in loaders):
        batches = batches or DEFAULT_BATCHES
        private = [_private_copy(loader, batches) if loader.num_workers else loader for loader in loaders]
        return [tree_unflatten(batch, structure) for batch in islice(zip(*private, strict=False), batches)]
    if isinstance(data, Tensor | Mapping | np.ndarray) or (
        isinstance(data, tuple) and data and isinstance(data[0], Tensor)
    ):
        data = [data]
    if not isinstance(data, Iterable):
        raise TypeError(f"Expected a loader, a list of batches or a batch, got {type(data).__name__}.")
    if batches is None and isinstance(data, list):
        return data
    return list(islice(data, batches or DEFAULT_BATCHES))


def unwrap_loader(loader: Any) -> Any:
    """Return the plain loader inside those of Accelerate and Fabric, which track and publish their progress."""
    while True:
        if isinstance(getattr(loader, "base_dataloader", None), DataLoader):
            loader = loader.base_dataloader
        elif type(loader).__name__ == "_FabricDataLoader":
            loader = loader._dataloader
        else:
            return loader


def default_forward(model: nn.Module, batch: Any) -> Any:
    """Call a model as its training loop most likely does: ``model(**batch)``, ``model(batch[0])``, ``model(batch)``.

    Raises:
        TypeError: If the batch does not fit the model; says how to pass `forward`.
    """
    if isinstance(batch, Mapping):
        try:
            inspect.signature(model.forward).bind(**batch)
        except TypeError as error:
            raise TypeError(
                f"{type(model).__name__}.forward() does not fit a batch with the keys {', '.join(map(str, batch))} "
                f"({error}). Pass forward=lambda model, batch: ... that calls the model as your training loop does."
            ) from error
        inputs: list[Any] = list(batch.values())
    else:
        inputs = [batch[0] if isinstance(batch, list | tuple) else batch]
    try:
        return model(**batch) if isinstance(batch, Mapping) else model(*inputs)
    except Exception as error:
        # Only then: some models convert their input themselves.
        if hint := next(filter(None, map(_hint, inputs)), None):
            raise TypeError(hint) from error
        raise


def move_to(batch: Any, device: torch.device) -> Any:
    """Return a batch with all of its tensors on a device; anything else stays as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move_to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_to(item, device) for item in batch)
    return batch


def _hint(x: Any) -> str | None:
    """Return what is most likely wrong with an input that a model refused."""
    if isinstance(x, np.ndarray):
        return (
            "The batches are NumPy arrays; convert them with torch.from_numpy, or in forward=lambda model, batch: ..."
        )
    if isinstance(x, Tensor) and x.dim() > 2 and not (x.is_floating_point() or x.is_complex()):
        return (
            f"The batches are {str(x.dtype).removeprefix('torch.')} images; convert them as your training loop does, "
            "for example with forward=lambda model, batch: model(batch[0].float() / 255)."
        )
    return None


class RandomStates:
    """Every state that reading batches or a forward pass may change: random generators and samplers.

    Args:
        data: A loader, or anything that contains loaders.
    """

    def __init__(self, data: Any = None) -> None:
        leaves, _ = tree_flatten(data)
        parts = [part for leaf in leaves for part in _parts_of(unwrap_loader(leaf))]
        generators = [getattr(part, "generator", None) for part in parts]
        self._generators = [generator for generator in generators if isinstance(generator, torch.Generator)]
        self._device = _accelerator()
        self._restore: list[Callable[[], object]] = [
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),
            partial(torch.set_rng_state, torch.get_rng_state()),
            *(partial(generator.set_state, generator.get_state()) for generator in self._generators),
            # Some samplers count their own epochs and shuffle by them.
            *(
                partial(setattr, part, "epoch", part.epoch)
                for part in parts
                if isinstance(getattr(part, "epoch", None), int)
            ),
        ]
        if self._device is not None:
            get, set_ = (
                getattr(self._device, f"{verb}_rng_state_all", None) or getattr(self._device, f"{verb}_rng_state")
                for verb in ("get", "set")
            )
            self._restore.append(partial(set_, get()))

    def restore(self) -> None:
        """Set everything back."""
        for restore in self._restore:
            restore()

    def reseed(self, seed: int) -> None:
        """Seed all generators whose states were saved."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        # Not torch.manual_seed: it would also seed devices whose state was not saved.
        for generator in (torch.default_generator, *self._generators):
            generator.manual_seed(seed)
        if self._device is not None:
            getattr(self._device, "manual_seed_all", self._device.manual_seed)(seed)


def _accelerator() -> Any:
    """Return torch's module of the accelerator in use, such as torch.cuda; None if there is none."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return None
    module: Any = torch.get_device_module(kind)
    return module if getattr(module, "is_initialized", lambda: True)() else None


def _parts_of(loader: Any) -> list[Any]:
    """Return a loader and its samplers, however deeply nested."""
    found = [loader]
    for part in found:
        inner = [getattr(part, name, None) for name in ("sampler", "batch_sampler")]
        found += [new for new in inner if new is not None and not any(new is old for old in found)]
    return found


def _private_copy(loader: DataLoader[Any], batches: int) -> DataLoader[Any]:
    """Return the same loader with its own workers, at most one per batch, which end with each pass.

    Persistent workers hold an iterator and random states that belong to the training loop.
    """
    private = copy.copy(loader)
    # Not setattr, which DataLoader forbids for some of these.
    vars(private).update(_iterator=None, persistent_workers=False, num_workers=min(loader.num_workers, batches))
    return private
