"""The cost of a network: parameters, and multiply-accumulates of one forward pass."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spatialgrad.utils.modules import keeping_buffers, quiet_evaluation, unwrap_model


class Count(NamedTuple):
    """The cost of a network."""

    parameters: int
    """Number of parameters; shared ones count once."""
    macs: int
    """Multiply-accumulates of convolutions, linear layers and attention for one input."""

    def __str__(self) -> str:
        return f"{self.parameters / 1e6:.1f} M parameters, {self.macs / 1e6:.0f} M MACs"


def count(model: nn.Module, input_size: tuple[int, ...]) -> Count:
    """Count the parameters and multiply-accumulates of a model in its current form: with branches, or merged.

    The model runs once on a single input of zeros and is left unchanged, except that lazy layers are initialized. One
    multiply-accumulate is two operations of `torch.utils.flop_counter`. Normalization, pooling and activations are not
    counted, as is usual.

    Args:
        model: The model.
        input_size: The shape of one input without the batch dimension, such as (3, 224, 224).

    Example:
        >>> from torch import nn
        >>> count(nn.Conv2d(3, 8, 3, padding=1, bias=False), (3, 4, 4))
        Count(parameters=216, macs=3456)
    """
    model = unwrap_model(model)
    if not input_size or any(size < 1 for size in input_size):
        raise ValueError(f"Invalid input_size: {input_size}; expected the shape of one input, such as (3, 32, 32).")
    parameters = list(model.parameters())
    like = parameters[0] if parameters else torch.zeros(())
    x = torch.zeros(1, *input_size, device=like.device, dtype=like.dtype)
    lazy = any(map(nn.parameter.is_lazy, chain(parameters, model.buffers())))
    unchanged = nullcontext() if lazy else keeping_buffers(model)
    with quiet_evaluation(model), unchanged, FlopCounterMode(display=False) as counter:
        model(x)
    return Count(sum(parameter.numel() for parameter in parameters), counter.get_total_flops() // 2)
