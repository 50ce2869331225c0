"""Callbacks for trainers: `spatialgrad.integrations.lightning` and `spatialgrad.integrations.transformers`.

A framework is imported only when its module is used.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
