"""The report pages of the archived studies, as part of the site: results/NAME.jsonl becomes reports/NAME/index.html."""

from pathlib import Path

from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[2] / "results"


def write_reports(app: Sphinx, exception: Exception | None) -> None:
    """Write the pages beside those of the documentation, once it is built."""
    if exception is not None or app.builder.format != "html":
        return
    from spatialgrad.report.page import write_report
    from spatialgrad.studies.archive import archives_in

    for archive in archives_in(RESULTS):
        write_report([archive], Path(app.outdir) / "reports" / archive.stem)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", write_reports)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
