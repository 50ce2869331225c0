"""``spatialgrad report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from spatialgrad.cli.importing import importing


def report(
    studies: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="STUDY...")],
    out: Path | None = None,
) -> None:
    """Write the tables and figures of studies, finished or not: report.md, and index.html as one offline page.

    Args:
        studies: Study folders, or names of studies whose folders are in studies/.
        out: Output folder; by default report/ in the study's folder, or beside the first of several.
    """
    with importing():
        from spatialgrad.report.write import write_report

    print(write_report(studies, out))
