"""Downloads by pooch: retried, verified by checksum, and under their name only when complete."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from spatialgrad.data.errors import CorruptDataError, DataError, UnreachableError
from spatialgrad.utils.extras import install_command

RETRIES = 2
"""Further attempts after a transfer failed."""


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


def download(remote: RemoteFile, folder: Path) -> Path:
    """Download a file, unless it exists already with the right checksum; a terminal shows a progress bar.

    Args:
        remote: The file.
        folder: Where the file is stored under its own name.

    Raises:
        UnreachableError: If the host cannot be reached or refuses.
        CorruptDataError: If the checksum is wrong; the file is then removed.
        DataError: If it cannot be written.
    """
    try:
        import pooch
        from requests.exceptions import RequestException
    except ImportError as error:
        raise ImportError(f"downloads need pooch: {install_command('train')}") from error
    pooch.get_logger().setLevel("WARNING")
    files = pooch.create(
        path=folder,
        base_url="",
        registry={remote.name: remote.checksum},
        urls={remote.name: remote.url},
        retry_if_failed=RETRIES,
    )
    try:
        return Path(files.fetch(remote.name, progressbar=sys.stderr.isatty()))
    except RequestException as error:
        raise UnreachableError(f"{remote.url} cannot be downloaded ({error})") from error
    except ValueError as error:
        raise CorruptDataError(
            f"{remote.url} sent a file whose checksum is not {remote.checksum}; "
            "try again later, or from another network"
        ) from error
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error})") from error
