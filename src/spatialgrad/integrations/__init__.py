"""Callbacks for trainers: `spatialgrad.integrations.lightning` and `spatialgrad.integrations.transformers`.

A framework is imported only when its module is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from spatialgrad.utils.extras import install_command

__all__ = ["lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__


def load_framework(names: Sequence[str], title: str, extra: str) -> Any:
    """Import the first of several modules that is installed.

    Args:
        names: Modules to try.
        title: Name of the framework in the error message.
        extra: The extra of this package that installs it.

    Raises:
        ModuleNotFoundError: If none of them is installed.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A dependency of the framework that is missing is a different problem.
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
    raise ModuleNotFoundError(f"This needs {title}, which is not installed: {install_command(extra)}")
