"""Networks by name: `create_model`, `list_models` and `model_info`.

Names and facts are known without building a network, and so without PyTorch. To add a network, write or extend a file
of this folder with `NETWORKS`, and name it in `CATALOGUE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from spatialgrad.models.external import FORMS, ModelError, build_external, is_external, list_external
from spatialgrad.utils.text import did_you_mean

if TYPE_CHECKING:
    from torch import nn


NOT_PRETRAINED = "there are no pre-trained weights for {name}; use a network of timm or torchvision"
"""Why a network of the package cannot be pre-trained."""


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


def _build(family: str, name: str, **arguments: object) -> nn.Module:
    network: nn.Module = import_module(f"spatialgrad.models.{family}").NETWORKS[name](**arguments)
    return network


def _family(
    family: str,
    names: str,
    *,
    paper: str,
    input_size: tuple[int, int] = (32, 32),
    num_classes: int = 100,
    task: str = "classification",
) -> list[ModelInfo]:
    """The networks of a family, named with spaces between them."""
    return [
        ModelInfo(
            name=name,
            family=family,
            build=partial(_build, family, name),
            paper=paper,
            input_size=input_size,
            num_classes=num_classes,
            task=task,
        )
        for name in names.split()
    ]


_CONVNEXT = "Liu, Mao, Wu, Feichtenhofer, Darrell & Xie, CVPR 2022, arXiv:2201.03545"
_RESNET = "He, Zhang, Ren & Sun, CVPR 2016, arXiv:1512.03385"

CATALOGUE: tuple[ModelInfo, ...] = (
    *_family(
        "vgg",
        "vgg11 vgg13 vgg16 vgg19 vgg11-slim vgg13-slim vgg16-slim vgg19-slim vgg11-linear",
        paper="Simonyan & Zisserman, ICLR 2015, arXiv:1409.1556",
    ),
    *_family("resnet", "resnet18 resnet34 resnet50", paper=_RESNET),
    *_family(
        "resnet",
        "resnet18-imagenet resnet34-imagenet resnet50-imagenet",
        paper=_RESNET,
        input_size=(224, 224),
        num_classes=1000,
    ),
    *_family("seresnet", "seresnet18 seresnet34", paper="Hu, Shen & Sun, CVPR 2018, arXiv:1709.01507"),
    *_family(
        "preactresnet",
        "preactresnet18 preactresnet34",
        paper="He, Zhang, Ren & Sun, ECCV 2016, arXiv:1603.05027",
    ),
    *_family(
        "pyramidnet",
        "pyramidnet110-a48 pyramidnet110-a84 pyramidnet110-a270",
        paper="Han, Kim & Kim, CVPR 2017, arXiv:1610.02915",
    ),
    *_family("mobilenetv2", "mobilenetv2", paper="Sandler, Howard, Zhu, Zhmoginov & Chen, CVPR 2018, arXiv:1801.04381"),
    *_family("convnext", "convnext-atto", paper=_CONVNEXT),
    *_family("convnext", "convnext-atto-imagenet", paper=_CONVNEXT, input_size=(224, 224), num_classes=1000),
    *_family("shufflenet", "shufflenet", paper="Zhang, Zhou, Lin & Sun, CVPR 2018, arXiv:1707.01083"),
    *_family("xception", "xception", paper="Chollet, CVPR 2017, arXiv:1610.02357"),
    *_family(
        "pspnet",
        "pspnet18 pspnet34 pspnet50",
        paper="Zhao, Shi, Qi, Wang & Jia, CVPR 2017, arXiv:1612.01105",
        input_size=(713, 713),
        num_classes=19,
        task="segmentation",
    ),
    *_family(
        "pose_resnet",
        "poseresnet18 poseresnet34 poseresnet50",
        paper="Xiao, Wu & Wei, ECCV 2018, arXiv:1804.06208",
        input_size=(256, 256),
        num_classes=16,
        task="pose",
    ),
)
"""The networks of the package."""
_REGISTRY = {info.name: info for info in CATALOGUE}


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
    if pattern is not None and is_external(pattern):
        return sorted(list_external(pattern), key=_natural_key) if task in (None, "classification") else []
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
        ModelError: If an external network cannot be built.
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
    if is_external(name):
        if width != 1:
            raise ModelError(f"width must be 1, not {width}: it scales the networks of this package only", "width")
        return build_external(
            name, num_classes=num_classes, in_channels=in_channels, pretrained=pretrained, options=options
        )
    info = model_info(name)
    if pretrained:
        raise ModelError(NOT_PRETRAINED.format(name=name), "pretrained")
    if num_classes is None:
        num_classes = info.num_classes
    return info.build(num_classes=num_classes, width=width, in_channels=in_channels, **options)
