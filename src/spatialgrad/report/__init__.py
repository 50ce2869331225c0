"""Tables, plots and pages from what runs have left behind."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spatialgrad.report.write import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """Load what reads studies when it is asked for: the demo's plot does not need it."""
    if name == "write_report":
        from spatialgrad.report.write import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
