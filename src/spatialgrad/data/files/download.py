"""Downloads that resume, are verified by checksum, and appear under their name only when complete.

Written here because libraries that fetch data files, such as pooch, start an interrupted transfer over.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spatialgrad.data.errors import CorruptDataError, DataError, UnreachableError

Progress = Callable[[str], None]
"""Called with lines of text that tell how far a download is, such as `print`."""
ATTEMPTS = 4
TIMEOUT = 30.0
_CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the web and its checksum."""

    url: str
    checksum: str
    """Algorithm and hexadecimal digest, such as `md5:0123…`."""

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rsplit("/", 1)[-1]


def download(remote: RemoteFile, folder: Path, *, progress: Progress = print) -> Path:
    """Download a file, unless it exists already.

    An interrupted transfer leaves `<name>.part` behind, from which the next call resumes.

    Args:
        remote: The file.
        folder: Where the file is stored under its own name.
        progress: Called with a line of text now and then.

    Raises:
        UnreachableError: If the host cannot be reached or refuses.
        CorruptDataError: If the checksum is wrong; the file is then removed.
    """
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.is_file() and matches(target, remote.checksum):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error})") from error
    progress(f"downloading {remote.url}")
    resumed = part.is_file()
    _transfer_with_retries(remote, part, progress)
    if resumed and not matches(part, remote.checksum):
        progress(f"the partial download of {remote.name} does not match; starting over")
        part.unlink()
        _transfer_with_retries(remote, part, progress)
    if not matches(part, remote.checksum):
        part.unlink()
        raise CorruptDataError(
            f"{remote.url} sent a file whose checksum is not {remote.checksum}; it was removed. "
            f"Try again later, or from another network"
        )
    os.replace(part, target)
    return target


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has a checksum, such as `md5:0123…`."""
    algorithm, digest = checksum.split(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return found.hexdigest() == digest


def _transfer_with_retries(remote: RemoteFile, part: Path, progress: Progress) -> None:
    failures = 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            _transfer(remote, part, progress)
            return
        except urllib.error.HTTPError as error:
            error.close()
            raise UnreachableError(f"{remote.url}: the server responded {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            after = part.stat().st_size if part.is_file() else 0
            failures = failures + 1 if after <= before else 1
            if failures == ATTEMPTS or (isinstance(error, urllib.error.URLError) and not after):
                reason = getattr(error, "reason", error)
                kept = f"; {after:,} bytes are kept; the next call resumes from there" if after else ""
                raise UnreachableError(f"{remote.url} cannot be reached ({reason}){kept}") from error
            progress(f"transfer interrupted after {after:,} bytes; resuming")


def _transfer(remote: RemoteFile, part: Path, progress: Progress) -> None:
    """Append to `part` until it is complete; raises OSError or HTTPException if the transfer is interrupted."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "spatialgrad"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        return  # nothing is left to send; the checksum shows whether the part is right
    with response:
        is_rest = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if is_rest and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink()
            raise http.client.HTTPException("the server sent a different range than requested")
        start = have if is_rest else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        with _writing(part, "ab" if is_rest else "wb") as write, _display(remote.name, total, progress) as show:
            received = start
            show(received)
            while chunk := response.read(_CHUNK):
                write(chunk)
                received += len(chunk)
                show(received)
    if total is not None and received < total:
        raise http.client.IncompleteRead(b"", total - received)


@contextmanager
def _writing(path: Path, mode: Literal["ab", "wb"]) -> Iterator[Callable[[bytes], None]]:
    """Write so that a failure of the disk is not taken for one of the network."""

    def refused(error: OSError) -> DataError:
        return DataError(f"cannot write {path} ({error})")

    try:
        # Unbuffered: flushing a buffer when the file is closed could fail as well.
        file = path.open(mode, buffering=0)
    except OSError as error:
        raise refused(error) from error

    def write(chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise refused(error) from error

    with file:
        yield write
        os.fsync(file.fileno())


@contextmanager
def _display(name: str, total: int | None, progress: Progress) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, otherwise a line for every tenth."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as ProgressBar
        except ImportError:
            pass
        else:
            columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
            with ProgressBar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
                task = bar.add_task(name, total=total)
                yield lambda received: bar.update(task, completed=received)
            return
    tenths = -1

    def show(received: int) -> None:
        nonlocal tenths
        if total and received * 10 // total > tenths:
            tenths = received * 10 // total
            progress(f"{name}: {received / 1e6:.1f} of {total / 1e6:.1f} MB")

    yield show
