"""Locks of folders: the system releases them when their process ends, however it ends."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from spatialgrad.train.errors import FolderInUseError, StorageError

LOCK = "run.lock"
PATIENCE = 0.2
"""Seconds to wait for a lock: `is_locked` in another process holds it for a moment."""


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Lock a folder for this process, and create it if necessary.

    Where the file system has no locks, the existence of the lock file is the lock. It is then only removed
    automatically if its process ran on the same machine.

    Args:
        folder: To lock.
        name: Lock file; a folder can have several locks.

    Raises:
        FolderInUseError: If another process, or another part of this one, holds the lock.
        StorageError: If the lock file cannot be written.
    """
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _acquired(path)
    except Timeout as error:
        raise FolderInUseError(
            f"{folder} is in use by {_holder(path)}. Wait until it ends, or choose another folder with --out."
        ) from error
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror or error}") from error
    try:
        if not isinstance(lock, SoftFileLock):  # which has its own record in the file
            with suppress(OSError):
                path.write_text(f"process {os.getpid()} on {platform.node()}\n")
        yield
    finally:
        lock.release()


def is_locked(folder: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of a folder."""
    path = folder / name
    if not path.exists():
        return False
    try:
        _acquired(path, timeout=0).release()
    except Timeout:
        return True
    except OSError:  # a folder that only others can write to
        return False
    return False


def _acquired(path: Path, timeout: float = PATIENCE) -> BaseFileLock:
    lock: BaseFileLock = FileLock(path, timeout=timeout, poll_interval=0.02, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise
    except OSError:
        # Lustre and FUSE may have no locks, each with an error of its own. A folder that cannot be written fails again.
        if path.exists() and not path.read_text().strip():
            path.unlink()  # left by the attempt above
        lock = SoftFileLock(path, timeout=timeout, poll_interval=0.02)
        lock.acquire()
    return lock


def _holder(path: Path) -> str:
    try:
        holder = " ".join(path.read_text(errors="replace").split())
    except OSError:
        holder = ""
    if not holder or holder.startswith("process "):
        return holder or "another process"
    # Of a file system without locks.
    return f"process {holder}, unless that has ended on another machine: then remove {path}"
