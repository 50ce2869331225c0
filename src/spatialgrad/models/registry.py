"""Networks by name: `create_model` and `list_models`, and `model_info` for those of the package."""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from spatialgrad.models.catalogue import CATALOGUE, ModelInfo
from spatialgrad.models.outside.errors import ModelError
from spatialgrad.models.outside.names import FORMS, is_outside
from spatialgrad.models.outside.wanted import Wanted
from spatialgrad.torch_utils.names import did_you_mean

if TYPE_CHECKING:
    from torch import nn


NOT_PRETRAINED = "there are no pre-trained weights for {name}; use a network of timm or torchvision"
"""Why a network of the package cannot be pre-trained."""
_REGISTRY = {info.name: info for info in CATALOGUE}


def register(info: ModelInfo) -> None:
    """Add a network to the registry.

    Raises:
        ValueError: If the name is taken, or has a colon as those of networks from outside the package do.
    """
    if is_outside(info.name):
        raise ValueError(f"the name {info.name!r} must not contain a colon, which stands for {FORMS}")
    if info.name in _REGISTRY:
        raise ValueError(f"a model named {info.name!r} is already registered")
    _REGISTRY[info.name] = info


def model_info(name: str) -> ModelInfo:
    """Return what the registry knows about a network of the package.

    Args:
        name: A name from `list_models(task=None)`.

    Raises:
        ValueError: If the name is unknown; the message suggests similar names.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    hint = did_you_mean(
        name, _REGISTRY, otherwise=f"list_models(task=None) lists them all, and others are {FORMS}", most=3
    )
    raise ValueError(f"unknown model {name!r}; {hint}")


def list_models(pattern: str | None = None, *, task: str | None = "classification") -> list[str]:
    """Return the names of a task's networks, in natural order.

    Args:
        pattern: A shell pattern such as `"resnet*"` or `"*-imagenet"`; all names if None. `"timm:resnet*"` and
            `"torchvision:*"` list networks of these libraries.
        task: `classification`, `segmentation` or `pose`; the networks of all tasks if None.

    Raises:
        ModelError: If a library cannot be imported.

    Example:
        >>> from spatialgrad.models import list_models
        >>> list_models("vgg*-slim")
        ['vgg11-slim', 'vgg13-slim', 'vgg16-slim', 'vgg19-slim']
    """
    if pattern is not None and is_outside(pattern):
        from spatialgrad.models.outside.build import list_outside

        return sorted(list_outside(pattern), key=_natural_key) if task in (None, "classification") else []
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
    pretrained: bool = False,
    **options: object,
) -> nn.Module:
    """Build a network: of this package, of timm or torchvision, or from any function.

    The initial weights depend on torch's global seed: call `torch.manual_seed` first to make them reproducible.

    Args:
        name: A name from `list_models(task=None)`, or `timm:NAME`, `torchvision:NAME` or `package.module:function`.
            The function is called with `num_classes`, with the options, and with `in_channels` and `pretrained` where
            it takes them; its module may be in the working directory.
        num_classes: Number of classes, or of joints for `pose`; by default that of the paper's data set, or the
            library's.
        width: Factor on all numbers of channels and on the hidden sizes of the classifier, rounded so that groups
            divide evenly. 1 is the paper's network, 0.125 trains on one core. For networks of this package only.
        in_channels: Number of channels of the images.
        pretrained: Load the library's pre-trained weights, which it downloads and caches. The network gets a new last
            layer if its number of classes is another one.
        **options: Further keyword arguments of the network's class or function, such as `dropout` of `VGG`.

    Raises:
        ModelError: If a network from outside the package cannot be built.
        ValueError: If the name is unknown or a number is out of range.

    Example:
        >>> import torch
        >>> from spatialgrad.models import create_model
        >>> model = create_model("vgg16-slim", num_classes=10, width=0.125)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if num_classes is not None and num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, not {num_classes}")
    if in_channels < 1:
        raise ValueError(f"in_channels must be at least 1, not {in_channels}")
    if not (math.isfinite(width) and width > 0):
        raise ValueError(f"width must be a positive number, not {width}")
    if is_outside(name):
        if width != 1:
            raise ModelError(f"width must be 1, not {width}: it scales the networks of this package only", "width")
        from spatialgrad.models.outside.build import build_outside

        wanted = Wanted(num_classes=num_classes, in_channels=in_channels, pretrained=pretrained, options=options)
        return build_outside(name, wanted)
    info = model_info(name)
    if pretrained:
        raise ModelError(NOT_PRETRAINED.format(name=name), "pretrained")
    if num_classes is None:
        num_classes = info.num_classes
    return info.build(num_classes=num_classes, width=width, in_channels=in_channels, **options)
