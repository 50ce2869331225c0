"""One run of a study in a process of its own: ``python -m spatialgrad.studies.run.worker RUN_FOLDER``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spatialgrad.studies.study import Kind
from spatialgrad.train.exit_codes import exit_code_of
from spatialgrad.train.runs.folder import read_config, write_json

KIND = "kind.json"
"""In the folder of a run that is not a training."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or go on; the exit codes are those of the command line."""
    parser = argparse.ArgumentParser(description="Go on with a run of a study, with nothing but its folder.")
    parser.add_argument("folder", type=Path, help="Of the run; it holds a config.")
    parser.add_argument("--attached", action="store_true", help="Save and end when the standard input is closed.")
    options = parser.parse_args(arguments)
    if options.attached:
        threading.Thread(target=_follow_parent, daemon=True).start()
    return exit_code_of(lambda: execute(options.folder))


def execute(folder: Path) -> None:
    """Do what is to be done in a run's folder."""
    if kind_of(folder) == "equivalence":
        from spatialgrad.studies.run.side_by_side import train_side_by_side

        train_side_by_side(replace(read_config(folder), out=folder))
    else:
        from spatialgrad.train import resume

        resume(folder)


def kind_of(folder: Path) -> Kind:
    """What the run in a folder is."""
    path = folder / KIND
    kind: Kind = json.loads(path.read_text())["kind"] if path.exists() else "train"
    return kind


def write_kind(folder: Path, kind: Kind) -> None:
    """Write down what the run in a folder is, if it is not a training."""
    if kind != "train":
        write_json(folder / KIND, {"kind": kind})


def _follow_parent() -> None:
    """Wait until the process that has started this one is gone, however it ended; then stop like at SIGTERM."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
