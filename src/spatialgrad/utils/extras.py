"""How to install what an optional part of this package needs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
"""The folder of pyproject.toml, if the package runs from a checkout."""


def install_command(extra: str) -> str:
    """The command that installs an extra of this package into the environment that runs it.

    Args:
        extra: Such as "train".
    """
    pip = shutil.which("pip")
    own = pip is not None and Path(pip).parent.resolve() == Path(sys.executable).parent.resolve()
    install = "pip install" if own else f"{_short(Path(sys.executable))} -m pip install"
    if not (CHECKOUT / "pyproject.toml").is_file():
        return f"{install} 'spatialgrad[{extra}]'"
    return f"{install} -e '{_short(CHECKOUT)}[{extra}]'"


def _short(path: Path) -> str:
    """A path as it can be typed in the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
