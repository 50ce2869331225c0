"""Errors as exit codes and messages, for the command line and for the processes that studies start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from spatialgrad.data.errors import DataError
from spatialgrad.train.errors import InterruptedTraining, TrainError

EXIT_NO_DATA = 66


def exit_code_of(function: Callable[[], object]) -> int:
    """Call a function and return 0, or print its error and return the error's exit code."""
    try:
        function()
    except InterruptedTraining as error:
        return _fail(error, 128 + error.signal)
    except TrainError as error:
        return _fail(error, error.exit_code)
    except DataError as error:
        return _fail(error, EXIT_NO_DATA)
    except ModuleNotFoundError as error:
        return _fail(f"this needs {error.name}: pip install 'spatialgrad[train]'", 1)
    except (ValueError, OSError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _fail(error: object, code: int) -> int:
    # All processes of a training raise the same error: only the first one prints it.
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    if first or not isinstance(error, TrainError):
        print(f"spatialgrad: {error}", file=sys.stderr)
    return code
