"""Packages whose names are imported when they are first used: PyTorch takes seconds, and configs do without it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def import_on_use(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (its `__name__`) that imports names under `if TYPE_CHECKING:`.

    Type checkers and editors read these imports; the same lines say here where a name is, so that there is one list.

    Example:
        if TYPE_CHECKING:
            from package.module import function

        __getattr__, __dir__ = import_on_use(__name__)
    """
    module: Any = sys.modules[package]

    @cache
    def modules() -> dict[str, str]:
        source = module.__spec__.loader.get_source(package)
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, getattr(import_module(modules()[name]), name))
        return getattr(module, name)

    return get, lambda: sorted({*vars(module), *modules()})
