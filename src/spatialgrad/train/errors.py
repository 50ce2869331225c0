"""What can end a training, each with the exit code of the command line; 64 and above as in sysexits.h."""

from __future__ import annotations

import signal
from typing import ClassVar


class TrainError(RuntimeError):
    """A training cannot start or go on; the message says why and what to do."""

    exit_code: ClassVar[int] = 1


class ConfigError(TrainError):
    """A value of a config is wrong; the message names it, and the nearest right one for a name."""

    exit_code = 2


class DivergedError(TrainError):
    """The loss is not a number any more."""

    exit_code = 3


class DeployError(TrainError):
    """The merged network does not classify as the trained one does."""

    exit_code = 4


class FailedRunsError(TrainError):
    """Some runs of a study have no result."""

    exit_code = 5


class CheckpointError(TrainError):
    """No checkpoint of the folder can be read."""

    exit_code = 65


class StorageError(TrainError):
    """A file cannot be written, for instance because the disk is full."""

    exit_code = 74


class FolderInUseError(TrainError):
    """Another process trains in the same folder."""

    exit_code = 75


class OtherConfigError(TrainError):
    """The folder belongs to a training with another config."""

    exit_code = 78


class InterruptedTraining(TrainError):
    """A signal ended the training after its step was finished and saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, message)
        self.signal, self.message = signal.Signals(number), message

    def __str__(self) -> str:
        return self.message
