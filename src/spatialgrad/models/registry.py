"""All networks of the package by name: `create_model`, `list_models`, `model_info`."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from spatialgrad.torch_utils.names import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What the registry knows about one network."""

    name: str
    """The name that `create_model` takes."""
    family: str
    """Name of the family and of its module in `spatialgrad.models`."""
    build: Callable[..., nn.Module]
    """Builds the network from `num_classes`, `width`, `in_channels` and the options of the network."""
    paper: str
    """The paper that introduced the network."""
    input_size: tuple[int, int] = (32, 32)
    """Height and width of the images that the network is designed for."""
    num_classes: int = 100
    """Default number of classes."""
    task: str = "classification"
    """Task of the network: `classification`, `segmentation` or `pose`."""


_REGISTRY: dict[str, ModelInfo] = {}


def register(info: ModelInfo) -> None:
    """Add a network to the registry.

    Raises:
        ValueError: If the name is taken.
    """
    if info.name in _REGISTRY:
        raise ValueError(f"a model named {info.name!r} is already registered")
    _REGISTRY[info.name] = info


def model_info(name: str) -> ModelInfo:
    """Return what the registry knows about a network.

    Args:
        name: A name from `list_models(task=None)`.

    Raises:
        ValueError: If the name is unknown; the message suggests similar names.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    hint = did_you_mean(name, _REGISTRY, otherwise="list_models(task=None) lists them all", most=3)
    raise ValueError(f"unknown model {name!r}; {hint}")


def list_models(pattern: str | None = None, *, task: str | None = "classification") -> list[str]:
    """Return the names of a task's networks, in natural order.

    Args:
        pattern: A shell pattern such as `"resnet*"` or `"*-imagenet"`; all names if None.
        task: `classification`, `segmentation` or `pose`; the networks of all tasks if None.

    Example:
        >>> from spatialgrad.models import list_models
        >>> list_models("vgg*-slim")
        ['vgg11-slim', 'vgg13-slim', 'vgg16-slim', 'vgg19-slim']
    """
    names = [
        name
        for name, info in _REGISTRY.items()
        if task in (None, info.task) and (pattern is None or fnmatchcase(name, pattern))
    ]
    return sorted(names, key=_natural_key)


def _natural_key(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    width: float = 1.0,
    in_channels: int = 3,
    **options: object,
) -> nn.Module:
    """Build a freshly initialised network.

    The weights depend on torch's global seed: call `torch.manual_seed` first to make them reproducible.

    Args:
        name: A name from `list_models(task=None)`.
        num_classes: Number of classes, or of joints for `pose`; by default that of the paper's data set.
        width: Factor on all numbers of channels and on the hidden sizes of the classifier, rounded so that groups
            divide evenly. 1 is the paper's network, 0.125 trains on one core.
        in_channels: Number of channels of the images.
        **options: Options of the network's class, such as `dropout` of `VGG`.

    Raises:
        ValueError: If the name is unknown or a number is out of range.

    Example:
        >>> import torch
        >>> from spatialgrad.models import create_model
        >>> model = create_model("vgg16-slim", num_classes=10, width=0.125)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    info = model_info(name)
    if num_classes is None:
        num_classes = info.num_classes
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, not {num_classes}")
    if in_channels < 1:
        raise ValueError(f"in_channels must be at least 1, not {in_channels}")
    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width must be a positive number, not {width}")
    return info.build(num_classes=num_classes, width=width, in_channels=in_channels, **options)
