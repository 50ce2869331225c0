"""Modules of the user's, which a command line names as `package.module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def import_user_module(name: str) -> ModuleType:
    """Import a module, also from the working directory, where `python -m` would find it; raises what the module raises.

    Args:
        name: Dotted name of the module.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # It stays there: what is imported now may import more later.
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    return importlib.import_module(name)
