"""Networks from outside the package by name: `timm:NAME`, `torchvision:NAME` and `package.module:function`."""

from __future__ import annotations

from importlib import metadata

from torch import nn

from spatialgrad.models.outside.errors import ModelError
from spatialgrad.models.outside.function import build_from_function, describe_function
from spatialgrad.models.outside.libraries import LIBRARIES
from spatialgrad.models.outside.names import check_form
from spatialgrad.models.outside.wanted import Wanted


def build_outside(name: str, wanted: Wanted) -> nn.Module:
    """Build a network from outside the package.

    Raises:
        ModelError: If it cannot be built; the message says why.
    """
    check_form(name)
    source, _, rest = name.partition(":")
    if source not in LIBRARIES:
        return build_from_function(name, wanted)
    return LIBRARIES[source].build(rest, wanted)


def list_outside(pattern: str) -> list[str]:
    """The names of a library's networks that match a pattern such as `timm:resnet*`; all without one after the colon.

    Raises:
        ModelError: If the library is unknown, or cannot be imported.
    """
    source, _, rest = pattern.partition(":")
    if source not in LIBRARIES:
        raise ModelError(f"only the networks of {' and '.join(LIBRARIES)} can be listed, not those of {source!r}")
    return [f"{source}:{each}" for each in LIBRARIES[source].names(rest or "*")]


def describe_source(name: str) -> dict[str, str]:
    """The code that a network from outside comes from: the library and its version, or the file and its hash."""
    source = name.partition(":")[0]
    if source in LIBRARIES:
        return {"library": source, "version": metadata.version(source)}
    return describe_function(name)
