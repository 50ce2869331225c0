"""What users type: names that may be misspelt, counts, and modules of their own."""

from __future__ import annotations

import difflib
import importlib
import operator
import os
import sys
import traceback
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


class UserCodeError(ValueError):
    """Code of the user's cannot be imported, or has no such name; the message says why and what to do."""


def describe_error(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def place_of(error: BaseException, *own_files: str) -> str:
    """Where the user's code raised an error, in brackets; empty if it did not.

    Args:
        error: As it was caught.
        own_files: Files that are not the user's.
    """
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    ours = (__file__, importlib.__file__, *own_files)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and frame.filename not in ours
    ]
    # Rather the line that calls a library than the library's own.
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def is_object_name(name: str) -> bool:
    """Whether a name has the form `package.module:name`; nothing is imported."""
    module, separator, path = name.partition(":")
    return bool(separator) and all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def import_user_module(name: str, *, known: Iterable[str] = ()) -> ModuleType:
    """Import a module, also from the working directory, where `python -m` would find it.

    Args:
        name: Dotted name of the module.
        known: What a misspelt name may have meant.

    Raises:
        UserCodeError: If it cannot be imported.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # It stays there: what is imported now may import more later.
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # it is the user's code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            way_out = "run the command in the folder that contains it, add that folder to PYTHONPATH, or install it"
            hint = did_you_mean(name, known, otherwise=way_out)
            raise UserCodeError(f"module {name!r} not found; {hint}") from error
        reason = f"{describe_error(error)}{place_of(error)}"
        raise UserCodeError(f"module {name!r} cannot be imported: {reason}") from error


def find_object(name: str, *, known: Iterable[str] = ()) -> Any:
    """Return what `package.module:name` stands for.

    Args:
        name: Of that form.
        known: What a misspelt module may have meant.

    Raises:
        UserCodeError: If the module cannot be imported, or has no such name.
    """
    module, _, path = name.partition(":")
    found: Any = import_user_module(module, known=known)
    for part in path.split("."):
        if not hasattr(found, part):
            names = [each for each in vars(found) if not each.startswith("_")]
            hint = did_you_mean(part, names, otherwise="check the name after the colon")
            raise UserCodeError(f"{module} has no {path!r}; {hint}")
        found = getattr(found, part)
    return found
