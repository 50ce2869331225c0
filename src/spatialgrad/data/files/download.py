"""Downloads by pooch: retried, verified by checksum, and under their name only when complete."""

from __future__ import annotations

import sys
from pathlib import Path

from spatialgrad.data.errors import CorruptDataError, DataError, UnreachableError
from spatialgrad.utils.extras import install_command

RETRIES = 2
"""Further attempts after a transfer failed."""


def download(url: str, checksum: str, folder: Path) -> Path:
    """Download a file, unless it exists already with the right checksum; a terminal shows a progress bar.

    Args:
        url: Of the file; its last part becomes the file's name.
        checksum: Algorithm and hexadecimal digest, such as `md5:0123…`.
        folder: Where the file is stored.

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
    name = url.rsplit("/", 1)[-1]
    files = pooch.create(folder, "", registry={name: checksum}, urls={name: url}, retry_if_failed=RETRIES)
    try:
        return Path(files.fetch(name, progressbar=sys.stderr.isatty()))
    except RequestException as error:
        raise UnreachableError(f"{url} cannot be downloaded ({error})") from error
    except ValueError as error:
        raise CorruptDataError(
            f"{url} sent a file whose checksum is not {checksum}; try again later, or from another network"
        ) from error
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error})") from error
