"""``spatialgrad model``: list networks, and show what a method does with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from spatialgrad.cli.terminal import Rows
from spatialgrad.models.external import FORMS, ModelError, is_external
from spatialgrad.models.registry import list_models, model_info
from spatialgrad.train.config import METHOD_NAMES, ModelConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.flags import check_name, require
from spatialgrad.utils.text import describe_error

if TYPE_CHECKING:
    from torch import nn

    from spatialgrad.utils.flops import Count

TAKES_PART, LEFT_OUT = "✓", "·"
USUAL_SIZE = 224
"""Side of the images of a network that does not say for which it is designed."""


def model_list(pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PATTERN]")] = "*") -> None:
    """List the networks of the package, or of timm or torchvision.

    Args:
        pattern: Such as 'resnet*', 'timm:resnet*' or 'torchvision:*'; all networks of the package by default.
    """
    try:
        names = list_models(pattern, task=None)
    except ModelError as error:
        raise ConfigError(f"{pattern}: {error}") from error
    if not names:
        raise ConfigError(f"no network matches {pattern!r}; `spatialgrad model list` shows those of the package")
    if is_external(pattern):
        print("\n".join(names))
        return
    for name in names:
        info = model_info(name)
        size = "×".join(map(str, info.input_size))
        print(f"{name:<20} {info.task:<15} {size:<8} {_short(info.paper)}")
    print(f"\nOther networks: {FORMS}.")
    print("See `spatialgrad model list 'timm:*'` and `spatialgrad model show NAME`.")


def _short(paper: str) -> str:
    """First author or two, conference and year."""
    authors, _, published = paper.partition(", arXiv")[0].rpartition(", ")
    first, more, _ = authors.partition(",")
    return f"{first} et al., {published}" if more else f"{authors}, {published}"


def model_show(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    method: Annotated[str, tyro.conf.arg(metavar=f"{{{','.join(METHOD_NAMES)}}}")] = "sgs",
    num_classes: int | None = None,
    image_size: int | None = None,
    in_channels: int = 3,
    width: Annotated[float, tyro.conf.arg(name="model.width")] = 1.0,
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="model.options", metavar="[KEY=VALUE ...]")] = (),
) -> None:
    """Show the parameters and multiply-accumulates of a network, and which convolutions take part in a method.

    Args:
        name: A network of `spatialgrad model list`, timm:NAME, torchvision:NAME or package.module:function.
        method: Training method, as for `spatialgrad train`.
        num_classes: Number of classes; by default the network's own.
        image_size: Height and width of the images; by default those that the network is designed for, or 224.
        in_channels: Number of channels of the images.
        width: Factor on all channel counts, for networks of this package.
        options: Further arguments of the network.
    """
    check_name("method", method, METHOD_NAMES)
    for field, number in {"num_classes": num_classes, "image_size": image_size, "in_channels": in_channels}.items():
        require(number is None or number >= 1, field, number, "must be at least 1")
    config = ModelConfig(name=name, width=width, options=options)
    from spatialgrad.train.methods import find_method
    from spatialgrad.train.tasks.base import build_network
    from spatialgrad.utils.flops import count

    model = build_network(config, num_classes=num_classes, in_channels=in_channels)
    size = (in_channels, *_image_size(name, model, image_size))
    shape = "×".join(map(str, size))
    try:
        plain = count(model, size)
    except Exception as error:  # an external network may raise anything
        raise ConfigError(
            f"{name} does not accept images of {shape} ({describe_error(error)}); try another --image-size"
        ) from error
    try:
        found = find_method(method).participation(model, size)
    except ValueError as error:
        raise ConfigError(f"--method {method} cannot train {name}: {error}") from error
    console = Console(highlight=False)
    console.print(f"{name} for images of {shape}\n  network     {_cost(plain)}", markup=False)
    if found.trained is not model:
        console.print(f"  {f'with {method}':<11} {_cost(count(found.trained, size))}, until merged", markup=False)
    _print_table(console, model, method, found.reasons)


def _print_table(console: Console, model: nn.Module, method: str, reasons: Mapping[str, str]) -> None:
    """Every convolution, and the reasons of those that do not take part as numbered notes: they are long, and few."""
    notes = list(dict.fromkeys(reason for reason in reasons.values() if reason))
    table = Rows((method, "convolution", "kernel", "channels", "parameters"))
    modules = dict(model.named_modules())
    for name, reason in reasons.items():
        mark = f"{LEFT_OUT} ({notes.index(reason) + 1})" if reason else TAKES_PART
        table.add(mark, name, *_describe(modules.get(name), model, name))
    number = sum(not reason for reason in reasons.values())
    console.print()
    console.print(table)
    console.print(f"\n{number} of {len(reasons)} convolutions take part in {method}.", markup=False)
    for index, note in enumerate(notes, start=1):
        console.print(f"({index}) {note}", markup=False)


def _describe(conv: Any, model: nn.Module, name: str) -> tuple[str, str, str]:
    """Kernel, channels and parameters of a convolution, or of a parameter that the network convolves with itself."""
    if conv is None:
        weight = model.get_parameter(name)
        return "×".join(map(str, weight.shape[2:])), f"{weight.shape[1]}→{weight.shape[0]}", f"{weight.numel():,}"
    groups = f", {conv.groups} groups" if conv.groups > 1 else ""
    parameters = sum(parameter.numel() for parameter in conv.parameters())
    return "×".join(map(str, conv.kernel_size)), f"{conv.in_channels}→{conv.out_channels}{groups}", f"{parameters:,}"


def _image_size(name: str, model: nn.Module, wanted: int | None) -> tuple[int, int]:
    if wanted is not None:
        return wanted, wanted
    if not is_external(name):
        return model_info(name).input_size
    # timm's networks say what they are designed for.
    known: Any = getattr(model, "default_cfg", None)
    if isinstance(known, Mapping) and len(known.get("input_size", ())) == 3:
        return known["input_size"][1], known["input_size"][2]
    return USUAL_SIZE, USUAL_SIZE


def _cost(cost: Count) -> str:
    return f"{cost.parameters:,} parameters, {cost.macs:,} MACs"
