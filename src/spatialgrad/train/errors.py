"""Errors that end a training, each with an exit code of the command line; 64 and above as in sysexits.h."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import ClassVar

from spatialgrad.data.errors import DataError
from spatialgrad.utils.extras import install_command

EXIT_NO_DATA = 66
EXTRA = {
    *("filelock", "h5py", "jinja2", "lightning_fabric", "matplotlib", "msgspec", "optuna", "PIL", "rich"),
    *("scipy", "tomli_w", "tyro"),
}
"""Modules that the extra `[train]` installs."""


class TrainError(RuntimeError):
    """A training cannot start or continue; the message says why and what to do."""

    exit_code: ClassVar[int] = 1


class ConfigError(TrainError):
    """A value of a config is invalid; the message names its flag, and suggests the closest valid name."""

    exit_code = 2


class DivergedError(TrainError):
    """The loss became non-finite."""

    exit_code = 3


class DeployError(TrainError):
    """The merged or exported network does not agree with the trained one."""

    exit_code = 4


class DamagedFileError(TrainError, ValueError):
    """A file of a run is damaged; the message names it."""

    exit_code = 65


class CheckpointError(TrainError):
    """No checkpoint in the folder can be read, or it does not belong to the run."""

    exit_code = 65


class StorageError(TrainError):
    """A file cannot be written, for example because the disk is full."""

    exit_code = 74


class FolderInUseError(TrainError):
    """Another process is training in the same folder."""

    exit_code = 75


class OtherConfigError(TrainError):
    """The folder holds a run with a different config."""

    exit_code = 78


class InterruptedTraining(TrainError):
    """A signal stopped the training, after the current step was completed and saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, message)
        self.signal, self.message = signal.Signals(number), message

    def __str__(self) -> str:
        return self.message


def exit_code_of(function: Callable[[], object]) -> int:
    """Call a function and return 0, or print its error and return the error's exit code.

    Our own errors say what to do in a line or two; all others, which may come from the user's own code, are printed
    with their traceback.
    """
    try:
        function()
    except InterruptedTraining as error:
        return _fail(error, 128 + error.signal)
    except TrainError as error:
        return _fail(error, error.exit_code)
    except DataError as error:
        return _fail(error, EXIT_NO_DATA)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRA:  # the user's own code needs it
            traceback.print_exc()
            return 1
        return _fail(f"this needs {error.name}, of the extra [train]: {install_command('train')}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _fail(error: object, code: int) -> int:
    # All processes of a training raise the same error: only the first one prints it.
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    if first or not isinstance(error, TrainError):
        print(f"spatialgrad: {error}", file=sys.stderr)
    return code
