"""Shared by the families: channel counts under a width factor, and He initialisation."""

from torch import nn


def scale_channels(channels: float, width: float, multiple_of: int = 1) -> int:
    """Return `channels · width`, rounded to the nearest positive multiple of `multiple_of`.

    Args:
        channels: Number of channels at width 1.
        width: Width factor.
        multiple_of: Divisor of the result, such as the number of groups.
    """
    return multiple_of * max(1, round(channels * width / multiple_of))


def init_he_(model: nn.Module) -> None:
    """Draw the weights of all convolutions from a normal distribution with variance 2 / fan-out, in place.

    This is the initialisation of He et al. (ICCV 2015) for rectifiers that keeps the variance of the gradients
    from layer to layer. Biases and all other layers keep torch's default.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
