"""Frameworks: import one that is installed, or say how to install it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


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
    raise ModuleNotFoundError(f"This needs {title}, which is not installed: pip install 'spatialgrad[{extra}]'")
