"""Kept results: a study without its weights and logs, as one small file per finished run.

    results/cifar-desk/
      study.json                            as in the study's folder
      runs/cifar-100-sgs-ours/seed0.json    config and digest, metrics by epoch, result, machine, last scalings

`spatialgrad report results/cifar-desk` reads such a folder like the study's own.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spatialgrad.studies.files import read_object
from spatialgrad.studies.identity import other_run, planned_values
from spatialgrad.studies.record import STUDY, StudyRecord, best_file, read_study
from spatialgrad.train.config import FREE, TrainConfig, flatten, from_dict, to_dict
from spatialgrad.train.errors import ConfigError, DamagedFileError
from spatialgrad.train.jsonfiles import read_json, read_lines, replacing, write_json
from spatialgrad.train.run import CONFIG, ENVIRONMENT, METRICS, RESULT, SCALINGS, TIMINGS, Run

FORMAT = 1
MACHINE = ("python", "versions", "commit", "cpu", "cores", "threads", "memory_bytes", "device", "cuda", "processes")
"""What is kept of the environment; commands and paths are not."""
ADDED = (("label_smoothing", 0.0), ("scaling.control", "none"))
"""Fields that came after runs had been kept, with the value that those runs have."""
DIGITS = 6
"""Significant digits of metrics and scalings; results are kept exactly."""


def keep_study(study: Path, into: Path) -> Path:
    """Keep the finished runs of a study; files that are already kept and have not changed stay untouched.

    Args:
        study: The study's folder.
        into: Folder of kept studies; this one is kept in the folder of the same name in it.

    Returns:
        The folder of the kept study.

    Raises:
        ConfigError: If the study cannot be read, or another one is kept there.
        DamagedFileError: If files of a run are damaged, or it is not the planned one; all others are kept.
    """
    record, target = read_study(study), into / Path(study).resolve().name
    keep_record(record, target)
    planned, problems = planned_values(study, record), list[str]()
    for name in run_names(record):
        if (study / name / RESULT).exists():
            try:
                problem = other_run(study / name, planned[name]) or why_not_kept(study, name, target)
            except DamagedFileError as error:
                problem = str(error)
            problems += [f"  {study / name}: {problem}"] if problem else []
    copy_choices(record, study, target)
    if problems:
        header = f"not kept, because files are damaged or those of another run ({target} has all others):"
        raise DamagedFileError("\n".join([header, *problems]))
    return target


def keep_record(record: StudyRecord, target: Path) -> None:
    """Keep what was planned, together with what is already kept of the same study."""
    if (target / STUDY).exists():
        before = read_study(target)
        if (before.name, before.scale) != (record.name, record.scale):
            raise ConfigError(
                f"{target} keeps the study {before.name} at scale {before.scale}, not {record.name} at {record.scale}; "
                "choose another folder"
            )
        record = record.joined(before)
    record.write(target)


def keep_run(study: Path, name: str, target: Path) -> Path:
    """Keep a finished run as one file.

    Args:
        study: The study's folder.
        name: The run's folder, relative to it.
        target: Folder of the kept study.

    Raises:
        ConfigError: If its config cannot be read.
        DamagedFileError: If another of its files cannot be read.
    """
    folder, path = study / name, kept_file(target, name)
    config = portable_values(Run.open(folder).config, study)
    environment = read_json(folder / ENVIRONMENT)
    values = {
        "format": FORMAT,
        "digest": digest(config),
        CONFIG: config,
        RESULT: read_json(folder / RESULT),
        ENVIRONMENT: {key: environment[key] for key in MACHINE if key in environment},
        METRICS: _columns([_rounded(entry) for entry in read_lines(folder / METRICS)]),
        TIMINGS: [entry for entry in read_lines(folder / TIMINGS) if "session" in entry],
        SCALINGS: [_rounded(entry) for entry in read_lines(folder / SCALINGS)[-1:]],
    }
    text = "{\n" + ",\n".join(f"{json.dumps(key)}: {_compact(value)}" for key, value in values.items()) + "\n}\n"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
    return path


def why_not_kept(study: Path, name: str, target: Path) -> str:
    """Keep a finished run as `keep_run` does, and return which of its files is damaged; empty if the run is kept."""
    try:
        keep_run(study, name, target)
    except (ConfigError, DamagedFileError) as error:
        return str(error)
    return ""


def read_kept(path: Path) -> dict[str, Any]:
    """The content of a kept run, checked.

    Raises:
        ConfigError: If it cannot be read, has another format, or its config is not the one that was kept.
    """
    try:
        values = read_object(path)
        kept_format, kept_digest, config = values["format"], values["digest"], values[CONFIG]
        entries = _rows(values[METRICS])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a kept run ({type(error).__name__}: {error})") from error
    if kept_format != FORMAT:
        raise ConfigError(f"{path} has format {kept_format!r}, but this version reads format {FORMAT}")
    if not isinstance(config, dict) or kept_digest != digest(config):
        raise ConfigError(f"{path} was changed: its config does not have the digest {kept_digest!r}")
    return {**values, METRICS: entries}


def is_kept(folder: Path) -> bool:
    """Whether a study's folder holds kept runs instead of runs' folders."""
    names = run_names(read_study(folder))
    return any(kept_file(folder, name).exists() for name in names) and not any((folder / n).is_dir() for n in names)


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """A kept study as a study's folder, for as long as the context lasts; any other study as it is.

    A kept run that cannot be read becomes a run whose result cannot be read: the rest of the study is still shown.
    """
    if not is_kept(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="spatialgrad-") as temporary:
        study = Path(temporary) / Path(folder).resolve().name
        record = read_study(folder)
        record.write(study)
        for name in run_names(record):
            place = study / name
            if place.resolve().is_relative_to(study.resolve()) and kept_file(folder, name).exists():
                place.mkdir(parents=True, exist_ok=True)
                unpack_run(kept_file(folder, name), place)
        copy_choices(record, folder, study)
        yield study


def kept_file(target: Path, name: str) -> Path:
    """The file that keeps a run."""
    return target / f"{name}.json"


def run_names(record: StudyRecord) -> list[str]:
    """Folders of all runs of a study, relative to its own, each once."""
    points = [point for search in record.searches for point in search.points]
    runs = [*(run for arm in record.arms for run in arm.runs), *(run for point in points for run in point.runs)]
    return list(dict.fromkeys(run.folder for run in runs))


def digest(config: Mapping[str, Any]) -> str:
    """A digest of what a run computes: of all fields that affect its result."""
    values = {name: value for name, value in sorted(flatten(config).items()) if name not in FREE}
    values = {name: value for name, value in values.items() if (name, value) not in ADDED}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def portable_values(config: TrainConfig, study: Path) -> dict[str, Any]:
    """A config without paths of the machine: those of other runs are relative to the study's folder."""
    values = to_dict(config)
    values["out"], values["data"]["root"] = None, None
    for group, field in (("model", "backbone"), ("repopt", "scales")):
        start = values[group][field]
        if start is not None and Path(start).is_relative_to(study.resolve()):
            values[group][field] = str(Path(start).relative_to(study.resolve()))
    return to_dict(from_dict(values))


def unpack_run(path: Path, place: Path) -> None:
    """Write a kept run into a run's folder; one that cannot be read gets a result that says so."""
    try:
        values = read_kept(path)
    except ConfigError as error:
        (place / RESULT).write_text(f"{error}\n")
        return
    for name in (CONFIG, RESULT, ENVIRONMENT):
        write_json(place / name, values.get(name))
    for name in (METRICS, TIMINGS, SCALINGS):
        entries = values.get(name)
        lines = [json.dumps(entry) for entry in (entries if isinstance(entries, list) else ())]
        (place / name).write_text("".join(f"{line}\n" for line in lines))


def copy_choices(record: StudyRecord, source: Path, target: Path) -> None:
    """Copy what the searches of a study have chosen."""
    for search in record.searches:
        if (chosen := best_file(source, search.name)).is_file():
            copy, content = best_file(target, search.name), chosen.read_bytes()
            if not copy.is_file() or copy.read_bytes() != content:
                copy.parent.mkdir(parents=True, exist_ok=True)
                with replacing(copy) as file:
                    file.write(content)


def _columns(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for entry in entries for name in entry)
    return {name: [entry.get(name) for entry in entries] for name in names}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    rows = zip(*columns.values(), strict=True)
    return [{name: value for name, value in zip(columns, row, strict=True) if value is not None} for row in rows]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
