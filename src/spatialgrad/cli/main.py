"""The command ``spatialgrad``: parse, call the subcommand, and turn errors into messages and exit codes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

from spatialgrad.cli.commands import COMMANDS, build_app
from spatialgrad.cli.importing import importing
from spatialgrad.train.errors import exit_code_of
from spatialgrad.utils.text import did_you_mean

SPINS = "3000"
"""How often a waiting thread of OpenMP looks for work before it sleeps: for about 0.1 ms.

With libgomp's own number, 300,000, a training with two threads takes about nine times as long beside a program that
keeps a core busy: threads that wait take the core from the one they wait for. On a quiet machine, both are equally fast
(benchmarks/bench_waiting.py).
"""
DESCRIPTION = "Spatial gradient scaling for ConvNets. `spatialgrad --version` prints the versions."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _spin_briefly()
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


def _spin_briefly() -> None:
    """Set `SPINS` for this process, if it has not loaded torch yet, and those that it starts; users' settings win."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


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
