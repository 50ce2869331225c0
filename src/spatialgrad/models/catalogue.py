"""The networks of the package: what is known of each without building it, and so without PyTorch.

To add one, write or extend a file of this folder with `NETWORKS`, and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


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
"""All of them."""
