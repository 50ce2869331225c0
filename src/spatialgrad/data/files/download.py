"""Files from the web: resumed where a transfer broke off, verified, and in place only when whole."""

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
from spatialgrad.data.source import Report

ATTEMPTS = 4
TIMEOUT = 30.0
_CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the web, and the checksum by which it is known."""

    url: str
    checksum: str
    """Algorithm and hexadecimal digest, such as `md5:0123…`."""

    @property
    def name(self) -> str:
        """The file's name, which ends its address."""
        return self.url.rsplit("/", 1)[-1]


def download(remote: RemoteFile, folder: Path, *, report: Report = print) -> Path:
    """Download a file, unless it is there already.

    An interrupted transfer leaves `<name>.part` behind, and the next call goes on from there.

    Args:
        remote: The file.
        folder: Where it is put, under its own name.
        report: Called with a line of text now and then.

    Raises:
        UnreachableError: If the host cannot be reached or refuses.
        CorruptDataError: If what it sends does not have the right checksum; nothing of it is kept.
    """
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.is_file() and matches(target, remote.checksum):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error})") from error
    report(f"downloading {remote.url}")
    resumed = part.is_file()
    _transfer_with_retries(remote, part, report)
    if resumed and not matches(part, remote.checksum):
        report(f"what an earlier transfer had left of {remote.name} does not fit; starting over")
        part.unlink()
        _transfer_with_retries(remote, part, report)
    if not matches(part, remote.checksum):
        part.unlink()
        raise CorruptDataError(
            f"{remote.url} sent a file whose checksum is not {remote.checksum}; it was not kept. "
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


def _transfer_with_retries(remote: RemoteFile, part: Path, report: Report) -> None:
    failures = 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            _transfer(remote, part, report)
            return
        except urllib.error.HTTPError as error:
            error.close()
            raise UnreachableError(f"{remote.url}: the server answered {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            after = part.stat().st_size if part.is_file() else 0
            failures = failures + 1 if after <= before else 1
            if failures == ATTEMPTS or (isinstance(error, urllib.error.URLError) and not after):
                reason = getattr(error, "reason", error)
                kept = f"; {after:,} bytes are kept, the next call goes on from there" if after else ""
                raise UnreachableError(f"{remote.url} cannot be reached ({reason}){kept}") from error
            report(f"transfer interrupted after {after:,} bytes; going on")


def _transfer(remote: RemoteFile, part: Path, report: Report) -> None:
    """Append to `part` until it is whole; raises OSError or HTTPException when the transfer breaks off."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "spatialgrad"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        return  # nothing is left to send; the checksum will tell whether what we have is right
    with response:
        goes_on = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if goes_on and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink()
            raise http.client.HTTPException("the server sent another part than the one asked for")
        start = have if goes_on else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        with _writing(part, "ab" if goes_on else "wb") as write, _progress(remote.name, total, report) as show:
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
    """Writes of which a failure is the disk's, not the network's."""

    def refused(error: OSError) -> DataError:
        return DataError(f"cannot write {path} ({error})")

    try:
        # Without a buffer: what closing the file would still have to write could fail as well.
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
def _progress(name: str, total: int | None, report: Report) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, a line every tenth otherwise."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
        except ImportError:
            pass
        else:
            columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
            with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
                task = bar.add_task(name, total=total)
                yield lambda received: bar.update(task, completed=received)
            return
    tenths = -1

    def show(received: int) -> None:
        nonlocal tenths
        if total and received * 10 // total > tenths:
            tenths = received * 10 // total
            report(f"{name}: {received / 1e6:.1f} of {total / 1e6:.1f} MB")

    yield show
