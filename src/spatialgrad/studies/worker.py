"""One run of a study in a process of its own: ``python -m spatialgrad.studies.worker RUN_FOLDER``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from spatialgrad.train.errors import exit_code_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Start or resume a run; the exit codes are those of the command line."""
    parser = argparse.ArgumentParser(description="Start or resume a run of a study; its folder is self-contained.")
    parser.add_argument("folder", type=Path, help="Of the run; it holds a config.")
    parser.add_argument("--attached", action="store_true", help="Save and exit when the standard input is closed.")
    options = parser.parse_args(arguments)
    if options.attached:
        threading.Thread(target=_follow_parent, daemon=True).start()
    return exit_code_of(lambda: execute(options.folder))


def execute(folder: Path) -> None:
    """Start or resume the run in a folder."""
    # Imported here, so that a missing package becomes a message and an exit code.
    from spatialgrad.train.loop import resume

    resume(folder)


def _follow_parent() -> None:
    """Wait until the parent process is gone, however it ended; then stop as after SIGTERM."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
