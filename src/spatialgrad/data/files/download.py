"""Downloads that resume, are verified by checksum, and appear under their name only when complete.

Time and size are bounded, whatever the server does: a transfer slower than `SLOWEST`, one that is interrupted again and
again after a few bytes, and one that does not end are given up.

Written here because libraries that fetch data files, such as pooch, start an interrupted transfer over.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import time
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
SLOWEST = 1000
"""Bytes per second, on average over `TIMEOUT` seconds, below which a transfer counts as interrupted."""
_CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the web and its checksum."""

    url: str
    checksum: str
    """Algorithm and hexadecimal digest, such as `md5:0123…`."""
    max_bytes: int = 1 << 30
    """The transfer of a larger file is given up."""

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
        UnreachableError: If the host cannot be reached, refuses or sends an invalid response.
        CorruptDataError: If the checksum is wrong or the file too large; the file is then removed.
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
    failures, furthest = 0, part.stat().st_size if part.is_file() else 0
    while True:
        try:
            _transfer(remote, part, progress)
            return
        except urllib.error.HTTPError as error:
            error.close()
            said = " ".join(str(error.reason).split())  # urllib's own reasons have several lines
            raise UnreachableError(f"{remote.url}: the server responded {error.code} {said}") from error
        except (ValueError, http.client.InvalidURL) as error:
            raise UnreachableError(f"{remote.url}: the server sent an invalid response ({error})") from error
        except (OSError, http.client.HTTPException) as error:
            after = part.stat().st_size if part.is_file() else 0
            # Neither a few bytes nor the same ones again are progress: such a server would keep us forever.
            failures = failures + 1 if after < furthest + _CHUNK else 1
            furthest = max(furthest, after)
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
        received = have if is_rest else 0
        length = _content_length(response.headers.get("Content-Length"))
        total = received + length if length is not None else None
        with _writing(part, "ab" if is_rest else "wb") as write, _display(remote.name, total, progress) as show:
            show(received)
            _check_size(remote, part, total or 0)
            for chunk in _chunks(response):
                received += len(chunk)
                _check_size(remote, part, received)
                write(chunk)
                show(received)
    if total is not None and received < total:
        raise http.client.IncompleteRead(b"", total - received)


def _content_length(value: str | None) -> int | None:
    if value is not None and not re.fullmatch("[0-9]{1,18}", value.strip()):
        raise ValueError(f"Content-Length is {value[:40]!r}")
    return None if value is None else int(value)


def _check_size(remote: RemoteFile, part: Path, size: int) -> None:
    if size > remote.max_bytes:
        part.unlink(missing_ok=True)
        raise CorruptDataError(
            f"{remote.url} sends more than {remote.max_bytes:,} bytes, so it is not the published file; "
            f"try again later, or from another network"
        )


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body; raises TimeoutError if it arrives too slowly."""
    # The timeout of the socket does not notice: it starts again with each byte.
    since, received = time.monotonic(), 0
    while chunk := response.read1(_CHUNK):
        yield chunk
        received += len(chunk)
        now = time.monotonic()
        if now - since > TIMEOUT:
            if received < SLOWEST * TIMEOUT:
                raise TimeoutError(f"only {received:,} bytes in {now - since:.0f} seconds")
            since, received = now, 0


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
