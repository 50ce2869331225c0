"""Errors that end a training, each with an exit code of the command line; 64 and above as in sysexits.h."""

from __future__ import annotations

import signal
from typing import ClassVar


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
