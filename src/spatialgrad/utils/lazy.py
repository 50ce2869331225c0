"""Packages whose names are imported when they are first used: PyTorch takes seconds, and configs do without it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.abc import InspectLoader
from typing import Any


def import_on_use(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its names under `if TYPE_CHECKING:`.

    Type checkers and editors read these imports; the same lines say here where a name is, so that there is one list.

    Args:
        package: Its `__name__`.

    Example:
        if TYPE_CHECKING:
            from package.module import function

        __getattr__, __dir__ = import_on_use(__name__)
    """

    @cache
    def modules() -> dict[str, str]:
        return _imports_for_type_checkers(package)

    def get(name: str) -> Any:
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules()})

    return get, names


def _imports_for_type_checkers(package: str) -> dict[str, str]:
    """The module of each name that a package imports under `if TYPE_CHECKING:`."""
    spec = sys.modules[package].__spec__
    loader = spec.loader if spec else None
    source = loader.get_source(package) if isinstance(loader, InspectLoader) else None
    if source is None:
        raise ImportError(f"the source of {package} is missing; it must be installed together with the byte code")
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    (block,) = [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
