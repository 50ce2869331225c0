"""The names of networks from outside the package, and which of them can be right."""

from __future__ import annotations

from spatialgrad.models.outside.errors import ModelError

LIBRARY_NAMES = ("timm", "torchvision")
"""The libraries whose networks have names; the keys of `libraries.LIBRARIES`."""
FORMS = "timm:NAME, torchvision:NAME or package.module:function"


def is_outside(name: str) -> bool:
    """Whether a name is that of a network from outside the package; all others are in its registry."""
    return ":" in name


def check_form(name: str) -> None:
    """Raise unless a network from outside may have this name; nothing is imported.

    Raises:
        ModelError: If the name has none of the forms.
    """
    source, _, rest = name.partition(":")
    if source in LIBRARY_NAMES:
        valid = bool(rest) and not any(character.isspace() or character in ":/*?" for character in rest)
    else:
        valid = all(part.isidentifier() for path in (source, rest) for part in path.split("."))
    if not valid:
        raise ModelError(f"{name!r} does not have the form {FORMS}")
