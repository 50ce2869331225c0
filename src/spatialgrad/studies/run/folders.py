"""The folders of a study: locked while it is planned, and each run's prepared before it starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from spatialgrad.studies.plan import Job
from spatialgrad.train.errors import ConfigError, DamagedFileError, FolderInUseError, StorageError
from spatialgrad.train.locks import locked
from spatialgrad.train.run import Run

PLAN_LOCK = "plan.lock"
PATIENCE = 60.0
"""Seconds to wait for another command that is planning."""


def prepare(job: Job) -> None:
    """Write a run's config into its folder, or check the one that is there.

    Raises:
        ConfigError: If the config that is there cannot be read.
        OtherConfigError: If the folder holds a run with another config.
    """
    try:
        Run.open(job.folder).plan(replace(job.config, out=job.folder))
    except DamagedFileError as error:
        raise ConfigError(f"{error}. Restore the file, or move the folder away.") from error


@contextmanager
def planning(folder: Path) -> Iterator[None]:
    """Lock a study while it is planned or a search is decided; waits for other commands that do the same.

    Raises:
        StorageError: If another command does not release it in time.
    """
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder, PLAN_LOCK))
                break
            except FolderInUseError as error:
                if time.monotonic() > deadline:
                    raise StorageError(f"{folder} has been locked for {PATIENCE:.0f} s: {error}") from error
                time.sleep(0.05)
        yield
