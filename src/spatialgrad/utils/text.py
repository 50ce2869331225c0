"""What users type: names that may be misspelt, counts, and modules of their own."""

from __future__ import annotations

import difflib
import importlib
import operator
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str, most: int = 1) -> str:
    """A hint for a name that is not known.

    Args:
        name: The unknown name.
        known: The known names.
        otherwise: The hint if no known name is similar.
        most: Largest number of names to suggest.
    """
    similar = difflib.get_close_matches(name.lower(), list(known), n=most, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, similar))}?" if similar else otherwise


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of at least 0.

    NumPy's integers count, and so do tensors that hold one; True and False do not.
    """
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0
    except TypeError:
        return False


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
