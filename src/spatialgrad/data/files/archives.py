"""Tar archives from strangers: read in place, or unpacked where nothing can get out.

Links, devices, absolute names and `..` are refused, not skipped: no data set needs them. Nothing here relies on
`tarfile`'s own extraction filters, which some Python 3.11 releases do not have.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, Self

from spatialgrad.data.errors import CorruptDataError, DataError

_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".xz": lzma.open,
    ".txz": lzma.open,
    ".bz2": bz2.open,
    ".tar": open,
}
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
"""What the name of an archive may end in."""
# Six times the largest file of CIFAR: what is larger wants our memory.
MAX_BYTES = 1 << 30


def is_archive(path: Path) -> bool:
    """Whether it is a file with the name of a tar archive."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def stem(path: Path) -> str:
    """The name of an archive without its ending."""
    return next(path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end))


def read_files(archive: Path, names: set[str]) -> dict[str, bytes]:
    """Read some files of an archive into memory.

    Args:
        archive: A tar file, compressed or not.
        names: The last part of the name of each file that is wanted.

    Returns:
        The content of those that are there. The whole archive has been read and its checksum, if the
        compression has one, holds.

    Raises:
        CorruptDataError: If the archive is damaged, or has a file twice.
    """
    found: dict[str, bytes] = {}
    with open_tar(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name not in names or not member.isreg():
                continue
            if name in found:
                raise CorruptDataError(f"{archive} holds {name} twice")
            if member.size > MAX_BYTES:
                raise CorruptDataError(f"{archive} holds {member.name} of {member.size:,} bytes")
            content = tar.extractfile(member)
            found[name] = content.read() if content is not None else b""
            if len(found[name]) != member.size:
                raise CorruptDataError(f"{archive} is truncated in {member.name}")
    return found


def extract(archive: Path, folder: Path, *, top: str | None = None) -> None:
    """Unpack an archive into a new folder: whole, or not at all.

    Args:
        archive: A tar file, compressed or not.
        folder: Must not be there yet; appears, complete, at the end.
        top: The folder in the archive whose content is wanted; without it, everything is.

    Raises:
        CorruptDataError: If the archive is damaged, or has a member that may not be there.
        DataError: If the disk does not take it.
    """
    with whole_or_nothing(folder, top=top) as temporary:
        with open_tar(archive) as tar:
            for member in tar:
                extract_member(tar, member, temporary, archive)
        if top is not None and not (temporary / top).is_dir():
            raise CorruptDataError(f"{archive} holds no folder {top}")


def extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, archive: Path) -> None:
    """Write one member below `folder`, which must hold nothing but what this function wrote there."""
    target = folder / safe_name(member, archive)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    if source is None:
        raise CorruptDataError(f"{archive} has no content for {member.name}")
    try:
        # Exclusive creation never writes through something that is there already.
        with target.open("xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            if file.tell() != member.size:
                raise CorruptDataError(f"{archive} is truncated in {member.name}")
    except FileExistsError as error:
        raise CorruptDataError(f"{archive} holds {member.name} twice") from error


def safe_name(member: tarfile.TarInfo, archive: Path) -> str:
    """The name of a member, if it is a plain file or folder that stays where it is put.

    Raises:
        CorruptDataError: Otherwise, naming the member.
    """
    path = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise CorruptDataError(f"{archive} holds {member.name!r}, which is neither a plain file nor a folder")
    # A name is judged by the rules of both systems: on either, the other's is only odd.
    if "\0" in member.name or any(way.anchor or ".." in way.parts for way in (path, PureWindowsPath(member.name))):
        raise CorruptDataError(f"{archive} holds {member.name!r}, which would be written outside of its folder")
    return str(path)


@contextmanager
def open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive to be read from its first member to its last, and its checksum after them."""
    opener = _OPENERS.get(archive.suffix)
    if opener is None:
        raise DataError(f"{archive} does not end in one of {', '.join(SUFFIXES)}")
    try:
        with opener(archive, "rb") as file:
            # A compressed archive is a stream; a plain one can skip from header to header.
            with tarfile.open(fileobj=file, mode="r:" if opener is open else "r|", tarinfo=_StrictInfo) as tar:
                yield tar
            # Compression checksums stand at the very end, which tarfile does not read.
            while opener is not open and file.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorruptDataError(f"{archive} is truncated or damaged ({error})") from error
    except OSError as error:
        if error.errno is not None:
            raise
        # gzip and bz2 report damaged data as an OSError that no system call has made.
        raise CorruptDataError(f"{archive} is truncated or damaged ({error})") from error


def open_inner_tar(content: IO[bytes]) -> tarfile.TarFile:
    """Open an archive that is a member of one that `open_tar` has opened, which sees to its errors."""
    return tarfile.open(fileobj=content, mode="r:", tarinfo=_StrictInfo)


class _StrictInfo(tarfile.TarInfo):
    """Refuses a damaged header, where `tarfile` would silently take it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        end = len(buf) == tarfile.BLOCKSIZE and not any(buf)
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if end:
                raise
            raise tarfile.ReadError(f"damaged header: {error}") from error
        if info.size < 0:
            raise tarfile.ReadError(f"{info.name} has the size {info.size}")
        return info


@contextmanager
def whole_or_nothing(folder: Path, *, top: str | None = None) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its name at the end, or vanishes on any error.

    Args:
        folder: Must not be there yet.
        top: The folder in the temporary one that takes the name instead.
    """
    if folder.exists():
        raise DataError(f"{folder} is there already; remove it to have it written again")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise DataError(f"cannot write to {folder.parent} ({error})") from error
    try:
        yield temporary
        finished = temporary / (top or "")
        finished.chmod(0o755)
        os.rename(finished, folder)
    except OSError as error:
        raise DataError(f"cannot write {folder} ({error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
