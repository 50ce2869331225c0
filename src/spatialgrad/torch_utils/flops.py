"""What a network costs: parameters, and multiply-accumulates of one forward pass."""

from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spatialgrad.torch_utils.modules import quiet_evaluation, unwrap_model

__all__ = ["Count", "count"]


class Count(NamedTuple):
    """The cost of a network."""

    parameters: int
    """All parameters, each once."""
    macs: int
    """Multiply-accumulates of convolutions, linear layers and attention for one input."""

    def __str__(self) -> str:
        return f"{self.parameters / 1e6:.1f} M parameters, {self.macs / 1e6:.0f} M MACs"


def count(model: nn.Module, input_size: tuple[int, ...]) -> Count:
    """Counts parameters and multiply-accumulates of a model as it is now: with its branches, or merged.

    The model runs once on a single input of zeros and is left unchanged. One multiply-accumulate is half of what
    `torch.utils.flop_counter` counts; normalization, pooling and activations are not counted, as is usual.

    Args:
        model: The model.
        input_size: The shape of one input without the batch, for instance (3, 224, 224).
    """
    model = unwrap_model(model)
    if not input_size or any(size < 1 for size in input_size):
        raise ValueError(f"input_size is the shape of one input, such as (3, 32, 32), not {input_size}.")
    parameters = list(model.parameters())
    like = parameters[0] if parameters else torch.zeros(())
    x = torch.zeros(1, *input_size, device=like.device, dtype=like.dtype)
    with quiet_evaluation(model), FlopCounterMode(display=False) as counter:
        model(x)
    return Count(sum(parameter.numel() for parameter in parameters), counter.get_total_flops() // 2)
