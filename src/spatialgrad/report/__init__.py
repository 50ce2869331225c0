"""Reports of studies: tables, figures and one HTML page."""

from spatialgrad.report.write import write_report

__all__ = ["write_report"]
