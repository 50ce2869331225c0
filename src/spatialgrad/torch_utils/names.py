"""Hints for misspelt names, which every registry and config gives in the same words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
