"""The command ``spatialgrad``: parse, call the subcommand, and turn errors into messages and exit codes."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import metadata

from spatialgrad.cli.commands import COMMANDS, build_app
from spatialgrad.cli.importing import importing
from spatialgrad.torch_utils.names import did_you_mean
from spatialgrad.train.exit_codes import exit_code_of

DESCRIPTION = "Spatial gradient scaling for ConvNets. `spatialgrad --version` prints the versions."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        print(describe_version())
        return 0
    if mistake := _mistyped(given):
        print(f"spatialgrad: {mistake}", file=sys.stderr)
        return 2
    return exit_code_of(lambda: _run(given))


def describe_version() -> str:
    """The versions of the package and of what results depend on most; nothing of it is imported."""
    return f"spatialgrad {_installed('spatialgrad')} (torch {_installed('torch')}, Python {platform.python_version()})"


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _run(arguments: list[str]) -> None:
    with importing():
        app = build_app(arguments)
    app.cli(prog="spatialgrad", description=DESCRIPTION, args=arguments)


def _mistyped(arguments: Sequence[str]) -> str:
    """What is wrong with the name of a command; empty if it is right."""
    names, path = list(COMMANDS), "spatialgrad"
    for argument in arguments[:2]:
        if not names or argument.startswith("-"):
            break
        if argument not in names:
            hint = did_you_mean(argument, names, otherwise="choose from")
            return f"unknown command {argument!r}; {hint} ({', '.join(names)}); see `{path} --help`"
        names, path = list(COMMANDS[arguments[0]].subcommands), f"{path} {argument}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
