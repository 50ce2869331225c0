"""What the families share: channel counts under a width factor, and the initialisations."""

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
    """Initialise as He et al. (2015) prescribe for rectifiers, in place.

    Convolutions are normal with variance 2 / fan-out (which keeps the gradients' variance), linear layers
    normal with standard deviation 0.01, biases 0, normalization layers the identity.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        _init_rest_(module)


def init_glorot_(model: nn.Module) -> None:
    """Initialise as Glorot & Bengio (2010) prescribe, in place: uniform, by fan-in and fan-out, biases 0."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
        _init_rest_(module)


def _init_rest_(module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm2d):
        module.reset_parameters()
    elif isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)
