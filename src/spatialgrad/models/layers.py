"""What the families share: channel counts under a width factor, and the initialisations."""

import math

from torch import nn


def scale_channels(channels: float, width: float, multiple_of: int = 1) -> int:
    """Return `channels · width`, rounded to the nearest positive multiple of `multiple_of`.

    Args:
        channels: Channels at width 1.
        width: The factor.
        multiple_of: What the result must divide by, such as the number of groups.
    """
    return multiple_of * max(1, round(channels * width / multiple_of))


def init_he_(model: nn.Module) -> None:
    """Initialise as He et al. (ICCV 2015) prescribe for rectifiers, in place.

    Convolutions are normal with variance 2 / fan-out, which keeps the variance of the gradients from layer
    to layer; linear layers are normal with standard deviation 0.01, biases 0. Batch normalization is left as
    torch makes it: the identity.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            _, fan_out = _fans(module)
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        _zero_bias_(module)


def init_glorot_(model: nn.Module) -> None:
    """Initialise as Glorot & Bengio (AISTATS 2010) prescribe, in place.

    Weights are uniform with variance 2 / (fan-in + fan-out), biases 0. Batch normalization is left as torch
    makes it: the identity.
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            bound = math.sqrt(6 / sum(_fans(module)))
            nn.init.uniform_(module.weight, -bound, bound)
        _zero_bias_(module)


def _fans(layer: nn.Conv2d | nn.Linear) -> tuple[int, int]:
    """Return how many inputs one output sees and how many outputs one input reaches, at stride 1."""
    # torch.nn.init's own fan-out forgets the groups: 64 times too much for 64 depthwise channels.
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    per_output = layer.weight[0].numel()
    return per_output, layer.weight[:, 0].numel() // groups


def _zero_bias_(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)
