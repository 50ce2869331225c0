"""Read a JSON file of a run in any state: problems are reported by file name, never raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spatialgrad.studies.files import Complain, read_object
from spatialgrad.train.errors import DamagedFileError


def read_mapping(path: Path, complain: Complain) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or damaged."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        complain(str(error))
        return None
