"""The subcommands. A module is imported when its command is named, and imports PyTorch only when that is called."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tyro.extras import SubcommandApp


@dataclass(frozen=True)
class Command:
    """A subcommand of `spatialgrad`."""

    module: str
    """Name of the file in this package."""
    help: str = ""
    """What a command with subcommands does; the others say so in their docstrings."""
    subcommands: Mapping[str, str] = field(default_factory=dict)
    """Names of the functions, by subcommand."""
    trains: bool = False
    """Whether its defaults are those of `--recipe`: the module then has a function NAME_command of a config."""


COMMANDS: Mapping[str, Command] = {
    "demo": Command("demo"),
    "train": Command("train", trains=True),
    "resume": Command("train"),
    "export": Command("train"),
    "compare": Command("compare", trains=True),
    "tune": Command("tune", trains=True),
    "data": Command("data", "List and download data sets.", {"list": "data_list", "get": "data_get"}),
    "model": Command(
        "model", "List networks, and show what a method does with one.", {"list": "model_list", "show": "model_show"}
    ),
    "study": Command(
        "study",
        "Reproduce the paper's tables and figures: list, show, run, status, archive.",
        {
            "list": "study_list",
            "show": "study_show",
            "run": "study_run",
            "status": "study_status",
            "archive": "study_archive",
        },
    ),
    "report": Command("report"),
}


def build_app(arguments: Sequence[str]) -> SubcommandApp:
    """The parser of a command line.

    Args:
        arguments: The command that they name is imported; all others are only named.
    """
    from tyro.extras import SubcommandApp

    app = SubcommandApp()
    wanted = arguments[0] if arguments else None
    for name, command in COMMANDS.items():
        if command.subcommands:
            inner, chosen = SubcommandApp(), arguments[1] if name == wanted and len(arguments) > 1 else None
            for each, function in command.subcommands.items():
                known = _imported(command, function) if each == chosen else _named(command, function)
                inner.command(name=each)(known)
            app.command(inner, name=name, help=command.help)
        elif name != wanted:
            app.command(name=name)(_named(command, name))
        elif command.trains:
            default = import_module("spatialgrad.cli.train").default_config(arguments)
            app.command(name=name)(_imported(command, f"{name}_command")(default))
        else:
            app.command(name=name)(_imported(command, name))
    return app


def _imported(command: Command, function: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"spatialgrad.cli.{command.module}"), function)
    return found


def _named(command: Command, function: str) -> Callable[[], None]:
    """A function with the summary of the real one, from its source."""

    def placeholder() -> None:
        raise AssertionError(f"{function} was not imported")

    source = (Path(__file__).parent / f"{command.module}.py").read_text(encoding="utf-8")
    found = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == function
    )
    placeholder.__doc__ = (ast.get_docstring(next(found)) or "").partition("\n\n")[0]
    return placeholder
