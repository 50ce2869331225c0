"""Tar archives: read in place, or extracted completely or not at all."""

from __future__ import annotations

import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from spatialgrad.data.errors import CorruptDataError, DataError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
"""Endings of the names of archives."""


def is_archive(path: Path) -> bool:
    """Whether the path is a file named like a tar archive."""
    return path.name.endswith(SUFFIXES) and path.is_file()


def stem(path: Path) -> str:
    """The name of an archive without its suffix."""
    return next(path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end))


@contextmanager
def open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive, all members of which are then to be read.

    Raises:
        CorruptDataError: If it is truncated or damaged.
    """
    try:
        with tarfile.open(archive) as tar:
            yield tar
            # tarfile takes a damaged header for the end of the archive, and does not read a checksum that follows.
            assert tar.fileobj is not None
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("its end is missing or a header is damaged")
            while tar.fileobj.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise CorruptDataError(f"{archive} is truncated or damaged ({error})") from error
    except OSError as error:
        if error.errno is not None:
            raise
        # gzip and bz2 report damaged data as an OSError without an error number.
        raise CorruptDataError(f"{archive} is truncated or damaged ({error})") from error


def read_files(archive: Path, names: set[str]) -> dict[str, bytes]:
    """Read some files of an archive into memory.

    Args:
        archive: A tar file, compressed or not.
        names: File names, without folders.

    Returns:
        The content of each file that was found.

    Raises:
        CorruptDataError: If the archive is truncated or damaged.
    """
    found: dict[str, bytes] = {}
    with open_tar(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in names and member.isreg():
                content = tar.extractfile(member)
                found[name] = content.read() if content is not None else b""
    return found


def extract(archive: Path, folder: Path, *, top: str = "") -> None:
    """Extract an archive into a new folder, completely or not at all.

    Args:
        archive: A tar file, compressed or not.
        folder: Must not exist; created once everything has been extracted.
        top: The folder of the archive whose content is wanted; by default everything.

    Raises:
        CorruptDataError: If the archive is damaged, or contains a device, or a name or a link that leads out of the
            folder.
        DataError: If the files cannot be written.
    """
    if folder.exists():
        raise DataError(f"{folder} already exists; remove it to write it again")
    if not hasattr(tarfile, "data_filter"):
        raise DataError(f"extracting archives needs Python 3.11.4 or later; extract {archive} into {folder} yourself")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            content = Path(temporary, "content")
            with open_tar(archive) as tar:
                tar.extractall(content, filter="data")
            if not (content / top).is_dir():
                raise CorruptDataError(f"{archive} contains no folder {top}")
            os.rename(content / top, folder)
    except OSError as error:
        raise DataError(f"cannot write {folder} ({error})") from error
