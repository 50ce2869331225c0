"""Errors of studies, with the exit codes of the command line."""

from __future__ import annotations

from spatialgrad.train.errors import TrainError


class FailedRunsError(TrainError):
    """Some runs of a study have no result."""

    exit_code = 5
