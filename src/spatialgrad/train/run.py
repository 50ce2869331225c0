"""A run is a folder: `Run` is the one class that knows what is in it.

    runs/vgg11-cifar100-sgs-seed0/
      config.json        the config, and what identifies the run (digest, fingerprint of the data, processes)
      environment.json   versions and machine of the first session
      metrics.jsonl      one line per epoch; timings.jsonl: the time of each, and the sessions
      scalings.jsonl     what the method logs (growth.jsonl of dyrep, distances.jsonl of lemma)
      checkpoint.pt      everything that resuming needs
      result.json        written last: the run has finished

Reports read archived runs alike: a `Run` is opened from a folder, or made from a record with the same parts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from spatialgrad.train.checkpoint import has_checkpoint, load_checkpoint, save_checkpoint
from spatialgrad.train.config import TrainConfig, from_dict, to_dict, why_not_extendable
from spatialgrad.train.errors import CheckpointError, ConfigError, DamagedFileError, OtherConfigError
from spatialgrad.train.identity import EPOCHS, Identity, describe_difference, explain_difference, is_longer
from spatialgrad.train.jsonfiles import UNFINISHED, JsonLines, read_json, read_lines, write_json
from spatialgrad.train.locks import is_locked, locked
from spatialgrad.train.result import Result, to_result

CONFIG, ENVIRONMENT, RESULT, FAILURE = "config.json", "environment.json", "result.json", "failure.json"
EARLIER_RESULT = "result.{epochs}-epochs.json"
"""The result of a run before it was extended."""
METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"
SCALINGS, GROWTH, DISTANCES = "scalings.jsonl", "growth.jsonl", "distances.jsonl"
"""What methods log."""
LOGS = (METRICS, SCALINGS, GROWTH, DISTANCES)
"""The logs that are cut to their lengths at a checkpoint when a run resumes."""
EXAMPLES, EXAMPLES_INDEX = "examples", "examples.json"
"""Folder of pictures, and the file in it that lists them."""
TENSORBOARD = "tensorboard"
WEIGHTS, ONNX = "model.pt", "model.onnx"
"""What exports are called by default."""
HIDDEN = (".DS_Store", ".gitkeep", "desktop.ini", "Thumbs.db")
"""Files that systems put into folders."""

State = Literal["new", "running", "interrupted", "failed", "finished"]


class _Recorded(msgspec.Struct):
    """What `config.json` says about a run beside its config; None before the run has started."""

    digest: str | None = None
    data: str | None = None
    processes: int | None = None


class Run:
    """A training on disk, or an archived one; each part is read when it is first used.

    A part that is damaged raises a `DamagedFileError` (a `ConfigError` for the config) that names the file.

    Args:
        folder: Of the run, which need not exist; None for an archived run.
        record: The parts of an archived run; see `from_record`.
        name: For messages; by default the folder.
    """

    def __init__(
        self, folder: Path | None, record: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> None:
        self._folder, self._record = folder, record
        self.name = str(folder) if name is None else name
        self.extended_from: int | None = None
        """After `claim`: the number of epochs of the run that was extended."""
        self._files: dict[str, JsonLines] = {}
        self._held = ExitStack()

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """The run in a folder, which need not exist."""
        return cls(Path(folder))

    @classmethod
    def from_record(cls, record: Mapping[str, Any], name: str) -> Run:
        """An archived run.

        Args:
            record: Its parts as JSON values: `config` (with `identity` in it, as in `config.json`), `result`,
                `environment`, and the lists `metrics`, `timings`, `scalings`, `growth` and `distances`. Parts may be
                missing.
            name: For messages.
        """
        return cls(None, record, name=name)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        if self._folder is None:
            raise ValueError(f"{self.name} is an archived run, which has no folder")
        return self._folder

    @property
    def exists(self) -> bool:
        """Whether there is a config: the run was planned or started."""
        return "config" in self._record if self._record is not None else (self.folder / CONFIG).exists()

    @cached_property
    def config(self) -> TrainConfig:
        """The config.

        Raises:
            ConfigError: If there is none, or it is invalid.
        """
        try:
            return from_dict({name: value for name, value in self._config.items() if name != "identity"})
        except ConfigError as error:
            raise ConfigError(f"{self._path(CONFIG)}: {error}") from error

    @cached_property
    def identity(self) -> Identity:
        """What determines the result; data and processes are None before the run has started."""
        return Identity(self.config, self._recorded.data, self._recorded.processes)

    @property
    def digest(self) -> str:
        """The digest that was recorded when the run started; of the identity if none was."""
        return self._recorded.digest or self.identity.digest

    @cached_property
    def result(self) -> Result | None:
        """The result; None if the run has not finished."""
        values = self._values(RESULT)
        return None if values is None else to_result(values, str(self._path(RESULT)))

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and machine of the first session; empty before it."""
        return self._values(ENVIRONMENT) or {}

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each epoch."""
        return self._lines(METRICS)

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        """The seconds of each phase after each epoch.

        For each session, there is an entry with `session` and, after its first steps, one with `step_seconds`.
        """
        return self._lines(TIMINGS)

    @property
    def estimated_seconds(self) -> float | None:
        """How long the whole training takes if all steps take as long as the first ones; None before these."""
        paces = [entry for entry in self.timings if "step_seconds" in entry]
        return float(paces[-1]["step_seconds"]) * int(paces[-1]["steps"]) if paces else None

    @cached_property
    def scalings(self) -> list[dict[str, Any]]:
        """The scalings of each update."""
        return self._lines(SCALINGS)

    @cached_property
    def growth(self) -> list[dict[str, Any]]:
        """What dyrep has grown and cut."""
        return self._lines(GROWTH)

    @cached_property
    def distances(self) -> list[dict[str, Any]]:
        """The distances that lemma has measured."""
        return self._lines(DISTANCES)

    @property
    def epoch(self) -> int:
        """Number of completed epochs, as far as they are logged."""
        if self._record is not None:
            return int(self.metrics[-1]["epoch"]) + 1 if self.metrics else 0
        path = self.folder / METRICS
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    @property
    def failure(self) -> str | None:
        """Why the last attempt failed, as the study that started it has recorded; None if it did not fail."""
        values = self._values(FAILURE)
        return None if values is None else str(values.get("message", ""))

    @property
    def is_finished(self) -> bool:
        """Whether there is a result."""
        return "result" in self._record if self._record is not None else (self.folder / RESULT).exists()

    @property
    def is_running(self) -> bool:
        """Whether a process holds the run's lock."""
        return self._record is None and is_locked(self.folder)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self._record is None and has_checkpoint(self.folder)

    @property
    def state(self) -> State:
        """What has become of the run so far."""
        if self.is_finished:
            return "finished"
        if self.is_running:
            return "running"
        if self.failure is not None:
            return "failed"
        return "interrupted" if self.has_checkpoint or self.epoch else "new"

    def checkpoint(self) -> dict[str, Any]:
        """The state of the newest checkpoint.

        Raises:
            CheckpointError: If there is none, or it cannot be read.
        """
        state = load_checkpoint(self.folder) if self.has_checkpoint else None
        if state is None:
            if self.is_finished:
                raise CheckpointError(
                    f"{self.name} has a result, but no weights: it was restored from archived results, which have "
                    "none, or its checkpoint was deleted. Move the folder away and train the run again"
                )
            raise CheckpointError(f"{self.name} has no checkpoint yet; train it first")
        return state

    def plan(self, config: TrainConfig) -> None:
        """Write the config of a run that another process will start.

        Raises:
            OtherConfigError: If the folder holds another run, or something else.
        """
        same = self._check(Identity(config))
        recorded = _Recorded()
        if same or self.extended_from is not None:
            recorded = _Recorded(self._recorded.digest if same else None, self.identity.data, self.identity.processes)
        self._set_result_aside()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_config(config, recorded)

    def claim(self, identity: Identity) -> dict[str, Any] | None:
        """Lock the folder for this process, and make it that of a run; nothing is written if it is another one's.

        A folder without a checkpoint and without a result can be claimed by any run. The lock is held until `release`.

        Args:
            identity: Of the run. The run in the folder is the same, or one of fewer epochs that can be extended.

        Returns:
            The state of the checkpoint; None if there is none.

        Raises:
            FolderInUseError: If another process holds the lock.
            OtherConfigError: If the folder holds another run; the message lists the differences.
        """
        self._held.enter_context(locked(self.folder))
        try:
            self._check(identity)
            state = load_checkpoint(self.folder)
            self._cut(state["lines"] if state is not None else {})
            self._set_result_aside()
            recorded = _Recorded(identity.digest, identity.data, identity.processes)
            if not self.exists or self.config != identity.config or self._recorded != recorded:
                self._write_config(identity.config, recorded)
        except BaseException:
            self.release()
            raise
        return state

    def release(self) -> None:
        """Close all files and release the lock."""
        for file in self._files.values():
            file.close()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def log(self, file: str, entry: Mapping[str, Any]) -> None:
        """Append to one of the logs."""
        self._log(file).append(dict(entry))

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; the logs up to here belong to it.

        Raises:
            StorageError: If it cannot be written; existing checkpoints are unchanged.
        """
        # The logs come first: the checkpoint records their lengths.
        save_checkpoint(self.folder, {**state, "lines": {name: self._log(name).sync() for name in LOGS}})

    def record_environment(self, environment: Mapping[str, Any]) -> None:
        """Write the environment of the first session."""
        write_json(self.folder / ENVIRONMENT, environment)

    def finish(self, result: Result) -> None:
        """Write the result, which marks the run as finished."""
        write_json(self.folder / RESULT, {result.metric: result.value, **msgspec.to_builtins(result)})

    def record_failure(self, message: str, exit_code: int | None) -> None:
        """Record why an attempt failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Two failures with the same message differ in their id, whatever the clock says.
        values = {"message": message, "exit_code": exit_code, "time": time.time(), "id": uuid.uuid4().hex}
        write_json(self.folder / FAILURE, values)

    def forget_failure(self) -> None:
        """Remove the record of a failure before the run is tried again."""
        (self.folder / FAILURE).unlink(missing_ok=True)

    def _check(self, identity: Identity) -> bool:
        """Whether the folder holds this run already; raises if it holds another one that must not be overwritten."""
        if not self.exists:
            if self.folder.is_dir():
                self._check_empty()
            return False
        if not (self.has_checkpoint or self.is_finished):
            return False
        differing = explain_difference(self.identity, identity)
        if not differing:
            return True
        header, way_out = f"{self.name} holds another run:", "Choose another folder with --out."
        if not is_longer(differing):
            raise OtherConfigError("\n".join([header, describe_difference(differing), way_out]))
        if why_not := why_not_extendable(self.config):
            before, now = differing[EPOCHS]
            raise OtherConfigError(
                f"{self.name} holds a run of {before} epochs, which cannot be extended to --epochs {now}: {why_not}. "
                f"{way_out}"
            )
        self.extended_from = self.config.budget.epochs
        return False

    def _set_result_aside(self) -> None:
        """Rename the result of a run that is extended."""
        if self.extended_from is not None and self.is_finished:
            # Before the config is written: without it, a run that is interrupted here only writes it again.
            (self.folder / RESULT).replace(self.folder / EARLIER_RESULT.format(epochs=self.extended_from))

    def _check_empty(self) -> None:
        names = sorted(entry.name for entry in self.folder.iterdir())
        unexpected = [name for name in names if not name.endswith((".lock", UNFINISHED)) and name not in HIDDEN]
        if unexpected:
            raise OtherConfigError(
                f"{self.name} is not a run's folder: it holds {', '.join(unexpected[:3])} but no {CONFIG}. Choose "
                "another folder with --out."
            )

    def _write_config(self, config: TrainConfig, recorded: _Recorded) -> None:
        write_json(self.folder / CONFIG, {**to_dict(config), "identity": msgspec.to_builtins(recorded)})
        for name in ("config", "identity", "_config", "_recorded"):
            self.__dict__.pop(name, None)

    def _cut(self, lengths: Mapping[str, int]) -> None:
        """Remove what was logged after the checkpoint.

        Raises:
            DamagedFileError: If a log is shorter than it was then.
        """
        for name in LOGS:
            self._log(name).cut(int(lengths.get(name, 0)))

    def _log(self, name: str) -> JsonLines:
        return self._files.setdefault(name, JsonLines(self.folder / name))

    @cached_property
    def _config(self) -> dict[str, Any]:
        values = self._values(CONFIG)
        if values is None:
            raise ConfigError(f"{self.name} is not a run's folder: it has no {CONFIG}")
        return values

    @cached_property
    def _recorded(self) -> _Recorded:
        try:
            return msgspec.convert(self._config.get("identity", {}), _Recorded)
        except msgspec.ValidationError as error:
            raise DamagedFileError(f"{self._path(CONFIG)} is damaged ({error})") from error

    def _path(self, file: str) -> Path | str:
        return f"{file} of {self.name}" if self._folder is None else self._folder / file

    def _values(self, file: str) -> dict[str, Any] | None:
        if self._record is not None:
            return self._record.get(file.partition(".")[0])
        try:
            return read_json(self.folder / file)
        except FileNotFoundError:
            return None

    def _lines(self, file: str) -> list[dict[str, Any]]:
        if self._record is not None:
            return list(self._record.get(file.partition(".")[0], ()))
        return read_lines(self.folder / file)
