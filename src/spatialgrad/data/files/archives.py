"""Untrusted tar archives: read in place, or extracted where nothing can escape.

Extraction is `tarfile`'s, with its data filter. That filter strips leading slashes, keeps links within the folder and
overwrites a file that occurs twice; here links, devices, absolute names, `..` and duplicates are refused before it, not
skipped: no data set needs them. `tarfile` also takes a damaged header for the end of the archive, reads headers of any
size into memory, and does not read the checksum of the compression; all three are checked here.
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
"""Endings of the names of archives."""
# Five times CIFAR: more would only exhaust the memory.
MAX_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 16
"""Largest header for a long name or for attributes: a path has at most 4,096 bytes."""
MAX_GLOBAL_ATTRIBUTES = 100
_EXTENDED_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


def is_archive(path: Path) -> bool:
    """Whether the path is a file named like a tar archive."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def stem(path: Path) -> str:
    """The name of an archive without its suffix."""
    return next(path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end))


def read_files(archive: Path, names: set[str]) -> dict[str, bytes]:
    """Read some files of an archive into memory.

    The whole archive is read, and the checksum of its compression, if any, is verified.

    Args:
        archive: A tar file, compressed or not.
        names: File names, without folders.

    Returns:
        The content of each file that was found.

    Raises:
        CorruptDataError: If the archive is damaged, contains a file twice, or the files are too large for the memory.
    """
    found: dict[str, bytes] = {}
    total = 0
    with open_tar(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name not in names or not member.isreg():
                continue
            if name in found:
                raise CorruptDataError(f"{archive} contains {name} twice")
            total += member.size
            if total > MAX_BYTES:
                raise CorruptDataError(f"{archive} contains {member.name} of {member.size:,} bytes, which is too large")
            content = tar.extractfile(member)
            found[name] = content.read() if content is not None else b""
            if len(found[name]) != member.size:
                raise CorruptDataError(f"{archive} is truncated in {member.name}")
    return found


def extract(archive: Path, folder: Path, *, top: str | None = None) -> None:
    """Extract an archive into a new folder, completely or not at all.

    Args:
        archive: A tar file, compressed or not.
        folder: Must not exist; created once everything has been extracted.
        top: The folder of the archive whose content is wanted; None for everything.

    Raises:
        CorruptDataError: If the archive is damaged or contains a forbidden member.
        DataError: If the files cannot be written.
    """
    with complete_or_nothing(folder, top=top) as temporary:
        with open_tar(archive) as tar:
            for member in tar:
                extract_member(tar, member, temporary, archive)
        if top is not None and not (temporary / top).is_dir():
            raise CorruptDataError(f"{archive} contains no folder {top}")


def extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, archive: Path) -> None:
    """Extract one member into `folder`, which must contain only what this function has written."""
    target = folder / safe_name(member, archive)
    if target.exists() and not (member.isdir() and target.is_dir()):
        raise CorruptDataError(f"{archive} contains {member.name} twice")
    # Python 3.11.0 to 3.11.3 have no filters; the checks above do not depend on them.
    tar.extraction_filter = getattr(tarfile, "data_filter", None)
    tar.extract(member, folder, set_attrs=False)


def safe_name(member: tarfile.TarInfo, archive: Path) -> str:
    """The name of a member, if it is a plain file or folder below the root of the archive.

    Raises:
        CorruptDataError: Otherwise; the message names the member.
    """
    path = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()):
        raise CorruptDataError(f"{archive} contains {member.name!r}, which is neither a plain file nor a folder")
    # Names are checked by the rules of both systems, wherever the archive is read.
    if "\0" in member.name or any(way.anchor or ".." in way.parts for way in (path, PureWindowsPath(member.name))):
        raise CorruptDataError(f"{archive} contains {member.name!r}, which would be written outside its folder")
    return str(path)


@contextmanager
def open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive to read its members in order, and verify its checksum afterwards."""
    opener = _OPENERS.get(archive.suffix)
    if opener is None:
        raise DataError(f"{archive} is not an archive: its name must end in {', '.join(SUFFIXES)}")
    try:
        with opener(archive, "rb") as file:
            # A compressed archive is a stream; in a plain one, `tarfile` can skip from header to header.
            with _StrictTar.open(fileobj=file, mode="r:" if opener is open else "r|") as tar:
                yield tar
            # The checksum of the compression is at the very end, which `tarfile` does not read.
            while opener is not open and file.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorruptDataError(f"{archive} is truncated or damaged ({error})") from error
    except OSError as error:
        if error.errno is not None:
            raise
        # gzip and bz2 report damaged data as an OSError without an error number.
        raise CorruptDataError(f"{archive} is truncated or damaged ({error})") from error


def open_inner_tar(content: IO[bytes]) -> tarfile.TarFile:
    """Open an archive that is a member of one opened by `open_tar`, which also handles its errors."""
    return _StrictTar.open(fileobj=content, mode="r:")


class _StrictInfo(tarfile.TarInfo):
    """Refuses a damaged header, which `tarfile` would silently take for the end of the archive, and a huge one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        _check(info)
        if info.type in _EXTENDED_HEADERS and info.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {info.size:,} bytes is larger than {MAX_HEADER_BYTES:,}")
        return info

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # unknown to typeshed
            raise
        # ValueError: attributes that are not numbers; RecursionError: hundreds of headers for a single member.
        except (tarfile.HeaderError, ValueError, RecursionError) as error:
            raise tarfile.ReadError(f"damaged header: {error}") from error

    def _proc_gnusparse_10(self, *_: object) -> None:
        # The map of such a file is read before `_StrictTar` sees the member, and its size is not limited.
        raise tarfile.ReadError("it contains a sparse file")


class _StrictTar(tarfile.TarFile):
    """Checks every member, and forgets those that were read: their headers would fill the memory."""

    tarinfo = _StrictInfo
    members: list[tarfile.TarInfo]

    def next(self) -> tarfile.TarInfo | None:
        self.members.clear()
        info = super().next()
        if info is not None:
            _check(info)
        if len(self.pax_headers) > MAX_GLOBAL_ATTRIBUTES:
            raise tarfile.ReadError(f"it has more than {MAX_GLOBAL_ATTRIBUTES} global attributes")
        return info


def _check(info: tarfile.TarInfo) -> None:
    """Refuse a size that leads backwards in the archive, and sparse files, which are larger than their data."""
    if info.size < 0:
        raise tarfile.ReadError(f"{info.name!r} has the size {info.size}")
    if info.type == tarfile.GNUTYPE_SPARSE or info.issparse():
        raise tarfile.ReadError(f"{info.name!r} is a sparse file")


@contextmanager
def complete_or_nothing(folder: Path, *, top: str | None = None) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` at the end, or removed on any error.

    Args:
        folder: Must not exist.
        top: The subfolder of the temporary folder to rename instead.
    """
    if folder.exists():
        raise DataError(f"{folder} already exists; remove it to write it again")
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
