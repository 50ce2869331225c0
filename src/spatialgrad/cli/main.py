"""The command ``spatialgrad``: parse, call, and turn errors into messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        from spatialgrad.cli import commands
    except ModuleNotFoundError as error:
        print(f"spatialgrad: the command line needs {error.name}: pip install 'spatialgrad[train]'", file=sys.stderr)
        return 1
    return commands.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
