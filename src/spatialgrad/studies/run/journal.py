"""Optuna's journal of the searches in a study's folder: one file of lines, which survives kills and is shared.

`optuna-dashboard FOLDER/searches.log` shows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

JOURNAL, DAMAGED = "searches.log", "searches.damaged.log"


def open_journal(folder: Path, name: str, report: Callable[[str], None]) -> tuple[Any, optuna.Study]:
    """The storage of a folder's journal, and a search in it, which is created if necessary.

    A journal that cannot be read is set aside; the caller adds what the folders of the runs tell.

    Args:
        folder: The study's folder.
        name: Of the search.
        report: Called with a line of text if the journal is damaged.
    """
    try:
        return _open(folder, name)
    except (ValueError, KeyError) as error:  # raised by the journal for a truncated line
        (folder / JOURNAL).replace(folder / DAMAGED)
        report(f"{folder / JOURNAL} is damaged ({error}); it is kept as {DAMAGED} and rebuilt from the runs.")
        return _open(folder, name)


def _open(folder: Path, name: str) -> tuple[Any, optuna.Study]:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    # Absolute: Optuna looks for a lock that a killed process left through a symbolic link to this path.
    path = str((folder / JOURNAL).resolve())
    lock = JournalFileSymlinkLock(path)
    with quiet():
        _drop_unfinished_line(folder / JOURNAL, lock)
        storage = JournalStorage(JournalFileBackend(path, lock_obj=lock))
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
        study.get_trials(deepcopy=False)
    return storage, study


def _drop_unfinished_line(path: Path, lock: Any) -> None:
    """Remove what a killed process wrote of its last line; the next line would be appended to it and be lost too."""
    if not path.exists():
        return
    lock.acquire()  # no other command is writing now
    try:
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def unless_told() -> Iterator[None]:
    """Another command that saw the same result may have told Optuna a moment ago."""
    from optuna.exceptions import UpdateFinishedTrialError

    with suppress(UpdateFinishedTrialError):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages about every study and trial, but not its warnings."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
