"""``spatialgrad report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from spatialgrad.cli.importing import importing


def report(
    studies: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="STUDY|RUN...")],
    out: Path | None = None,
) -> None:
    """Write the tables and figures of studies or single trainings, finished or not, as index.html and report.md.

    Args:
        studies: Folders of studies or runs, archives, or names of studies whose folders are in studies/.
        out: Output folder; by default report/ in the folder that is reported, or beside the first of several.
    """
    with importing():
        from spatialgrad.report.page import write_report

    print(write_report(studies, out))
