"""Reports of studies and single trainings: tables, figures and one HTML page."""

from spatialgrad.report.page import write_report

__all__ = ["write_report"]
