"""The command ``spatialgrad``: find the subcommand, parse its flags, and turn errors into messages and exit codes."""

from __future__ import annotations

import inspect
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from types import FrameType
from typing import Any

from spatialgrad.train.errors import exit_code_of
from spatialgrad.utils.text import did_you_mean

COMMANDS: Mapping[str, str | Mapping[str, str]] = {
    "demo": "demo:demo",
    "compare": "compare:compare_command",
    "train": "train:train_command",
    "report": "report:report",
    "export": "train:export",
    "study": {
        "list": "study:study_list",
        "show": "study:study_show",
        "run": "study:study_run",
        "status": "study:study_status",
        "archive": "study:study_archive",
    },
    "resume": "train:resume",
    "tune": "tune:tune_command",
    "data": {"list": "data:data_list", "get": "data:data_get"},
    "model": {"list": "model:model_list", "show": "model:model_show"},
}
"""Modules of this package and what they call each subcommand; a module is imported when its command is named."""
OVERVIEW = """\
Spatial gradient scaling for ConvNets.

First commands:
  demo       See it work on shipped images, in three minutes.
               {program} demo
  compare    Find out whether it helps on your images, in half an hour. FOLDER holds a folder of images per class.
               {program} compare FOLDER
  train      Train a network by any method. The same command again resumes it.
               {program} train --recipe pocket --method sgs
  report     Write the tables and figures of a training, a comparison or a study as a page.
               {program} report runs/NAME
  export     Export a trained network: weights or ONNX.
               {program} export runs/NAME --onnx
  study      Reproduce the tables and figures of the paper.
               {program} study run cifar --scale pocket

Further commands:
  resume     Resume a training.
  tune       Tune k on held-out training images.
  data       List and download data sets.
  model      List networks, and show what a method does with one.

`{program} COMMAND --help` explains a command.
`{program} --version` prints the versions."""
HELP = ("-h", "--help", "--help-all")
SPINS = "3000"
"""How often a waiting thread of OpenMP looks for work before it sleeps: for about 0.1 ms.

With libgomp's own number, 300,000, a training with two threads takes about nine times as long beside a program that
keeps a core busy: threads that wait take the core from the one they wait for. On a quiet machine, both are as fast.
"""
INTERRUPTED = 128 + signal.SIGINT


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
    with _quiet_interrupts(), _warnings_once():
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


@contextmanager
def _warnings_once() -> Iterator[None]:
    """Show each line that the package logs once: a command may read its data set several times."""
    handler, shown = logging.lastResort, set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        known = record.getMessage() in shown
        shown.add(record.getMessage())
        return not known

    if handler is None:
        yield
        return
    handler.addFilter(is_new)
    try:
        yield
    finally:
        handler.removeFilter(is_new)


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """End at once on Ctrl-C while packages are imported: compiled ones may swallow a `KeyboardInterrupt`."""

    def end(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                os.write(2, b"spatialgrad: interrupted\n")
                os._exit(INTERRUPTED)
            frame = frame.f_back
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for `command &` in a script
        yield
        return
    try:
        before = signal.signal(signal.SIGINT, end)
    except ValueError:  # not in the main thread, which gets the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run(arguments: list[str]) -> None:
    import tyro

    from spatialgrad.cli.options import LONG, ConfigCommand, unwrapped
    from spatialgrad.cli.terminal import program

    if not arguments or arguments[0] in HELP:
        print(OVERVIEW.format(program=program()))
        return
    name, *rest = arguments
    found, path = COMMANDS[name], f"{program()} {name}"
    if not isinstance(found, str):
        if not rest or rest[0] in HELP:
            print(_describe_group(path, found))
            return
        found, path, rest = found[rest[0]], f"{path} {rest[0]}", rest[1:]
    function = _load(found)
    if isinstance(function, ConfigCommand):
        function = function.bind(rest)
    else:
        function.__doc__ = unwrapped(function)
    tyro.cli(function, prog=path, args=["--help" if each == LONG else each for each in rest])


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"spatialgrad.cli.{module}"), name)


def _describe_group(path: str, subcommands: Mapping[str, str]) -> str:
    """The subcommands of a command, with the first sentence of their documentation."""
    functions: dict[str, Callable[..., None]] = {name: _load(place) for name, place in subcommands.items()}
    lines = [
        f"  {name:<10} {(inspect.getdoc(function) or '').partition(chr(10))[0]}" for name, function in functions.items()
    ]
    return "\n".join([f"usage: {path} {{{','.join(functions)}}}", "", *lines, "", f"See `{path} NAME --help`."])


def _mistyped(arguments: Sequence[str]) -> str:
    """What is wrong with the name of a command; empty if it is right."""
    known: str | Mapping[str, str] | Mapping[str, str | Mapping[str, str]] = COMMANDS
    path = "spatialgrad"
    for argument in arguments[:2]:
        if isinstance(known, str) or argument.startswith("-"):
            break
        if argument not in known:
            hint = did_you_mean(argument, list(known), otherwise="choose from")
            return f"unknown command {argument!r}; {hint} ({', '.join(known)}); see `{path} --help`"
        known, path = known[argument], f"{path} {argument}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
