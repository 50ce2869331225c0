"""Filters: the current G of every convolution, in buffers by which an optimizer's step can multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spatialgrad.sgs.matrices import check_scaling, check_shape
from spatialgrad.torch_utils.distributed import local_part
from spatialgrad.torch_utils.modules import Convolution
from spatialgrad.torch_utils.numbers import is_count


class Filters:
    """One G per convolution, repeated to the size of one filter of its weight; all ones at first.

    Multiplying by whole filters is several times faster than broadcasting G over 3×3 kernels. Buffers are written in
    place and replaced only when a weight has moved to another device, so that captured graphs see new values.

    Args:
        convolutions: The convolutions by qualified name.
    """

    def __init__(self, convolutions: Mapping[str, Convolution]) -> None:
        self._convolutions = dict(convolutions)
        self._values = {name: _filter_of_ones(conv) for name, conv in convolutions.items()}

    def scalings(self) -> dict[str, Tensor]:
        """Return a copy of every G by qualified name."""
        return {name: values[0].clone(memory_format=torch.contiguous_format) for name, values in self._values.items()}

    def check(self, scalings: Mapping[str, Tensor]) -> None:
        """Raise `ValueError` unless every scaling fits its convolution."""
        for name, scaling in scalings.items():
            check_scaling(name, scaling, tuple(self._convolutions[name].kernel_size))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` unless a state_dict of a scaling is complete and belongs to these convolutions."""
        expected = ("scalings", "dependence", "num_updates")
        if not set(expected) <= set(state):
            raise ValueError(
                f"Not a state_dict of SpatialGradientScaling: it holds {', '.join(state) or 'nothing'} instead of "
                f"{', '.join(expected)}."
            )
        scalings, dependence, count = (state[key] for key in expected)
        missing = sorted(set(self._convolutions) - set(scalings))
        unexpected = sorted((set(scalings) | set(dependence)) - set(self._convolutions))
        if missing or unexpected:
            raise ValueError(
                "The state_dict belongs to another architecture: "
                f"missing {', '.join(missing) or 'nothing'}, unexpected {', '.join(unexpected) or 'nothing'}."
            )
        self.check(scalings)
        for name, S in dependence.items():
            check_shape(f"The dependence of {name!r}", S, tuple(self._convolutions[name].kernel_size))
        if not is_count(count):
            raise ValueError(f"Invalid num_updates in the state_dict: {count!r}; it must be an integer of at least 0.")

    def assign(self, scalings: Mapping[str, Tensor] | Tensor, skipped: Mapping[str, str]) -> Mapping[str, Tensor]:
        """Return scalings by qualified name, given as such or as one for every convolution of its kernel size.

        Args:
            scalings: As for `SpatialGradientScaling.set_scalings`.
            skipped: The reasons why other convolutions have none, for the error.
        """
        if isinstance(scalings, Tensor):
            shape = tuple(scalings.shape)
            fitting = self.names_with_kernel(shape)
            if not fitting:
                raise ValueError(f"No convolution has a kernel of shape {shape}.")
            return dict.fromkeys(fitting, scalings)
        unknown = sorted(set(scalings) - set(self._convolutions))
        if unknown:
            reasons = [f"{name} ({skipped.get(name, 'no such convolution')})" for name in unknown]
            raise KeyError(f"Cannot scale {', '.join(reasons)}; choose from {', '.join(self._convolutions)}.")
        return scalings

    def names_with_kernel(self, kernel_size: tuple[int, ...]) -> list[str]:
        """Return the convolutions that have kernels of this size."""
        return [name for name, conv in self._convolutions.items() if tuple(conv.kernel_size) == kernel_size]

    def copy_(self, scalings: Mapping[str, Tensor]) -> None:
        """Replace scalings by qualified name."""
        for name, scaling in scalings.items():
            self._values[name].copy_(scaling)

    def pair(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return a weight and its filter, or None if the weight is no longer what an optimizer updates."""
        # Looked up each time: wrappers may replace parameters and move them.
        weight, values = self._convolutions[name]._parameters.get("weight"), self._values[name]
        if weight is None or not weight.is_leaf:
            return None
        if values.device != weight.device:
            values = self._values[name] = values.to(weight.device)
        return weight, values


def _filter_of_ones(conv: Convolution) -> Tensor:
    """Return ones with the shape and memory layout of one filter of the (local part of the) weight."""
    weight = local_part(conv.weight.detach())
    if tuple(weight.shape[2:]) != tuple(conv.kernel_size):
        raise ValueError(f"The kernel of {conv} is sharded along a spatial dimension, which cannot be scaled.")
    dtype = weight.dtype if weight.dtype == torch.float64 else torch.float32
    if len(weight) == 0:  # an empty shard
        return weight.new_ones(weight.shape[1:], dtype=dtype)
    return torch.ones_like(weight[0], dtype=dtype)
