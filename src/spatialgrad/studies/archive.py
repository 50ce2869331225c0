"""Archived results: a study without weights and logs, as one small file that fits into a repository.

    results/
      cifar-desk.jsonl     the study as planned and what its searches chose; then a line per finished run
      environments.jsonl   the machines and versions that these lines refer to

A run's line has its config as the difference from a recipe, its identity and its result, a few points of its curves,
and G after the first and the last update. It is read as a `Run`; nothing is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import msgspec

from spatialgrad.studies.record import StudyRecord, read_best, read_choices, read_study, to_record
from spatialgrad.studies.status import why_not_planned
from spatialgrad.train.config import FREE, TrainConfig, digest_of, flatten, from_dict, to_dict, with_values
from spatialgrad.train.errors import ConfigError, DamagedFileError
from spatialgrad.train.identity import STARTS, Identity, explain_difference
from spatialgrad.train.jsonfiles import JsonLines, read_lines, replacing
from spatialgrad.train.recipes import RECIPES, recipe
from spatialgrad.train.result import Result
from spatialgrad.train.run import Run

SUFFIX, ENVIRONMENTS = ".jsonl", "environments.jsonl"
TAKEN = "archived.jsonl"
"""The file in a study's folder with the archived runs that it uses."""
MACHINE = ("python", "versions", "commit", "cpu", "cores", "threads", "memory_bytes", "device", "cuda", "processes")
"""What is archived of an environment; commands and paths are not."""
CURVE_POINTS = 10
"""Number of epochs of which the metric is archived, the last one included."""
DIGITS, DIGITS_OF_G = 6, 3
"""Significant digits of metrics and times, and of G; the headline metric is exact."""
FROM_CONFIG = ("model", "method", "seed", "epochs", "identity")
"""What a result repeats of the config."""


@dataclass(frozen=True, kw_only=True)
class StudyOnDisk:
    """A study as it is on disk: its folder, or its archive."""

    path: Path
    """The folder or the file."""
    record: StudyRecord
    runs: Mapping[str, Run]
    """Every run of the record, in whatever state, by its folder there."""
    choices: Mapping[str, Mapping[str, Any]]
    """What each search has chosen."""
    archived: Set[str] = frozenset()
    """The runs that are archived, and have no folder."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why the choice of a search cannot be read."""


def open_study(path: Path) -> StudyOnDisk:
    """A study's folder, or an archived study.

    Raises:
        ConfigError: If there is none.
        DamagedFileError: If an archive is damaged.
    """
    if not path.is_dir():
        return read_archive(path)
    record, taken = read_study(path), read_taken(path)
    choices, problems = dict[str, Mapping[str, Any]](), dict[str, str]()
    for search in record.searches:
        try:
            if (chosen := read_best(path, search.name)) is not None:
                choices[search.name] = chosen
        except DamagedFileError as error:
            problems[search.name] = str(error)
    runs = {name: Run.open(path / name) for name in record.runs}
    archived = {name: taken[name] for name, run in runs.items() if name in taken and not run.is_finished}
    return StudyOnDisk(
        path=path, record=record, runs=runs | archived, choices=choices, archived=archived.keys(), problems=problems
    )


def is_archive(path: Path) -> bool:
    """Whether a path is that of an archived study."""
    return path.suffix == SUFFIX and path.name != ENVIRONMENTS and path.is_file()


def archives_in(folder: Path) -> list[Path]:
    """The archived studies in a folder, by name."""
    return [path for path in sorted(folder.glob(f"*{SUFFIX}")) if is_archive(path)]


def archive_of(study: Path, into: Path) -> Path:
    """The file in which a study is archived."""
    return into / f"{Path(study).resolve().name}{SUFFIX}"


def read_archive(path: Path) -> StudyOnDisk:
    """An archived study.

    Raises:
        ConfigError: If there is none.
        DamagedFileError: If a line of it is damaged, or a config does not have the recorded digest.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not an archived study: there is no such file")
    head, *lines = read_lines(path) or [{}]
    if not isinstance(head.get("study"), dict):
        raise DamagedFileError(f"line 1 of {path} is damaged (not the record of a study)")
    record = to_record(_with_configs(head["study"], _expanded), f"line 1 of {path}")
    runs = {name: Run.from_record({}, f"{name} in {path}") for name in record.runs}
    runs |= _read_runs(path, lines, read_environments(path.parent))
    return StudyOnDisk(path=path, record=record, runs=runs, choices=head.get("choices", {}), archived=runs.keys())


def read_environments(folder: Path) -> dict[str, dict[str, Any]]:
    """The environments that the archives in a folder refer to."""
    return {entry["id"]: entry for entry in read_lines(folder / ENVIRONMENTS)}


def archive_study(study: Path, into: Path) -> Path:
    """Archive the finished runs of a study, together with those that are already archived.

    Args:
        study: The study's folder.
        into: Folder of archives.

    Returns:
        The archive.

    Raises:
        ConfigError: If the study cannot be read, or another one is archived there.
        DamagedFileError: If files of a run are damaged, or it is not the planned one; all others are archived.
    """
    record = read_study(study)
    choices, problems, planned = read_choices(study, record), dict[str, str](), dict[str, Run]()
    for name, config in record.planned_configs(choices).items():
        run = Run.open(study / name)
        try:
            if run.is_finished and (problem := why_not_planned(run, config)):
                problems[name] = problem
            elif run.is_finished:
                planned[name] = run
        except (ConfigError, DamagedFileError) as error:
            problems[name] = str(error)
    path = archive_of(study, into)
    problems |= add_to_archive(path, record, choices, planned)
    if problems:
        header = f"not archived, because files are damaged or those of another run ({path} has all others):"
        raise DamagedFileError("\n".join([header, *(f"  {study / name}: {why}" for name, why in problems.items())]))
    return path


def add_to_archive(
    path: Path, record: StudyRecord, choices: Mapping[str, Mapping[str, Any]], runs: Mapping[str, Run]
) -> dict[str, str]:
    """Add runs to an archive, which need not exist; it stays untouched if nothing is new.

    Args:
        path: The archive.
        record: The study; what is already archived of it is joined.
        choices: What each search has chosen.
        runs: Finished runs by their folders in the record.

    Returns:
        Why runs could not be added, by their folders: their files are damaged.

    Raises:
        ConfigError: If another study is archived there.
    """
    lines: dict[str, dict[str, Any]] = {}
    if path.exists():
        before = read_archive(path)
        if (before.record.name, before.record.scale) != (record.name, record.scale):
            raise ConfigError(
                f"{path} archives the study {before.record.name} at scale {before.record.scale}, not {record.name} at "
                f"{record.scale}; choose another folder"
            )
        record, choices = record.joined(before.record), {**before.choices, **choices}
        lines = {line["run"]: line for line in read_lines(path)[1:]}
    path.parent.mkdir(parents=True, exist_ok=True)
    environments, problems = read_environments(path.parent), dict[str, str]()
    for name, run in runs.items():
        try:
            lines[name] = {"run": name, **to_line(run)}
        except (ConfigError, DamagedFileError) as error:
            problems[name] = str(error)
            continue
        if (key := lines[name]["environment"]) not in environments:
            environments[key] = _machine(run)
            table = JsonLines(path.parent / ENVIRONMENTS)
            table.append({"id": key, **_machine(run)})
            table.close()
    order = {name: number for number, name in enumerate(record.runs)}
    in_order = sorted(lines.values(), key=lambda line: order.get(line["run"], len(order)))
    head = {"study": _with_configs(msgspec.to_builtins(record, enc_hook=str), _compact), "choices": choices}
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in (head, *in_order))
    if not path.exists() or path.read_bytes() != content:
        with replacing(path) as file:
            file.write(content)
    return problems


def to_line(run: Run) -> dict[str, Any]:
    """What is archived of a finished run.

    Raises:
        ConfigError: If its config cannot be read.
        DamagedFileError: If another of its files cannot be read.
    """
    result, config = run.result, _portable(run.config)
    if result is None:
        raise DamagedFileError(f"{run.name} has no result")
    identity = Identity(config, run.identity.data, run.identity.processes)
    started = [entry["session"] for entry in run.timings if "session" in entry]
    updates = [run.scalings[0], run.scalings[-1]] if len(run.scalings) > 1 else run.scalings
    line = {
        "config": _compact(config),
        "digest": identity.digest,
        "data": identity.data,
        "processes": identity.processes,
        "environment": digest_of(_machine(run))[:8],
        "started": started[0] if started else None,
        "result": _compact_result(result),
        "metrics": _points(run.metrics, (f"train_{result.metric}", f"test_{result.metric}")),
        "scalings": [
            {"epoch": entry["epoch"], "scalings": rounded(entry["scalings"], DIGITS_OF_G)} for entry in updates
        ],
    }
    return {name: value for name, value in line.items() if value is not None and value != []}


def from_line(line: Mapping[str, Any], environments: Mapping[str, Mapping[str, Any]], name: str) -> Run:
    """The run that a line describes.

    Args:
        line: As `to_line` returns it.
        environments: By id.
        name: For messages.

    Raises:
        DamagedFileError: If the config does not have the digest that was recorded.
    """
    try:
        config = from_dict(_expanded(line["config"]))
        identity = Identity(config, line.get("data"), line.get("processes"))
        if identity.digest != line["digest"]:
            raise DamagedFileError(
                f"{name} is damaged: its config does not have the digest {line['digest']}. The line was edited, or the "
                f"recipe {line['config']['recipe']} is not the one it was archived with"
            )
        known = {"digest": identity.digest, "data": identity.data, "processes": identity.processes}
        columns = line["metrics"]
        record = {
            "config": {**to_dict(config), "identity": known},
            "result": _expanded_result(line["result"], config, identity),
            "environment": dict(environments.get(line["environment"], {})),
            "metrics": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
            "timings": [{"session": line["started"], "step": 0}] if "started" in line else [],
            "scalings": line.get("scalings", []),
        }
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise DamagedFileError(f"{name} is damaged ({type(error).__name__}: {error})") from error
    return Run.from_record(record, name)


class ArchivedRuns:
    """The runs in a folder of archives, and in the lines that a study has taken from it.

    Args:
        folder: Of archives; which study a run was archived from does not matter.
        on_problem: Called with a line of text about an archive that cannot be read.
    """

    def __init__(self, folder: Path, on_problem: Callable[[str], None]) -> None:
        self.folder = folder
        self._by_config: dict[str, list[Run]] = {}
        for path in archives_in(folder):
            try:
                runs = read_archive(path).runs.values()
            except (ConfigError, DamagedFileError) as error:
                on_problem(f"not used: {error}")
                continue
            for run in (each for each in runs if each.is_finished):
                self._by_config.setdefault(Identity(run.config).digest, []).append(run)

    def find(self, config: TrainConfig, processes: int, fingerprint: Callable[[], str | None]) -> Run | None:
        """An archived run with the same identity.

        Args:
            config: Of the planned run.
            processes: Their number.
            fingerprint: Returns that of the data set that the planned run would read; called only if necessary.
        """
        for run in self._by_config.get(Identity(_portable(config)).digest, ()):
            data = fingerprint() if run.identity.data is not None else None
            if data is None and run.identity.data is not None:
                continue
            if not explain_difference(run.identity, Identity(run.config, data, processes)):
                return run
        return None


def read_taken(study: Path) -> dict[str, Run]:
    """The archived runs that a study uses instead of training them again, by their folders there."""
    entries = read_lines(study / TAKEN)
    environments = {entry["environment"]: entry["machine"] for entry in entries}
    return _read_runs(study / TAKEN, entries, environments, first=1)


def take(study: Path, name: str, run: Run) -> None:
    """Use an archived run for a folder of a study."""
    lines = JsonLines(study / TAKEN)
    lines.append({"run": name, **to_line(run), "machine": _machine(run)})
    lines.close()


def data_fingerprint(config: TrainConfig) -> str | None:
    """The fingerprint of the images and labels that a training would read; None if its data set is not here."""
    return _data_fingerprint(TrainConfig(task=config.task, model=config.model, data=config.data))


@cache
def _data_fingerprint(config: TrainConfig) -> str | None:
    import torch

    from spatialgrad.data import fingerprint
    from spatialgrad.data.errors import DataError
    from spatialgrad.train.tasks import find_task

    try:
        return fingerprint(find_task(config.task)(config, torch.device("cpu")).dataset)
    except DataError:
        return None


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """JSON values with fewer significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list) else value


def _read_runs(
    path: Path, lines: Iterable[Mapping[str, Any]], environments: Mapping[str, Mapping[str, Any]], first: int = 2
) -> dict[str, Run]:
    return {
        str(line.get("run")): from_line(line, environments, f"line {number} of {path}")
        for number, line in enumerate(lines, start=first)
    }


def _machine(run: Run) -> dict[str, Any]:
    return {name: run.environment[name] for name in MACHINE if name in run.environment}


def _portable(config: TrainConfig) -> TrainConfig:
    """A config without what depends on the machine; of paths of other runs, the parts that count."""
    default = flatten(to_dict(TrainConfig()))
    starts = {name: value for name, value in flatten(to_dict(config)).items() if name in STARTS and value is not None}
    shortened = {name: "/".join(PurePath(value).parts[-2:]) for name, value in starts.items()}
    return with_values(config, {name: default[name] for name in FREE} | shortened)


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    return {name: flatten(to_dict(recipe(name))) for name in RECIPES}


def _compact(config: TrainConfig | Mapping[str, Any]) -> dict[str, Any]:
    """A config as a recipe and the fields that differ from it."""
    values = flatten(config if isinstance(config, Mapping) else to_dict(config))
    values = {name: value for name, value in values.items() if name not in FREE}
    changes = {
        name: {field: value for field, value in values.items() if value != base[field]}
        for name, base in _recipes().items()
    }
    nearest = min(changes, key=lambda name: len(changes[name]))
    return {"recipe": nearest, **changes[nearest]}


def _expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    changes = {name: value for name, value in values.items() if name != "recipe"}
    return to_dict(with_values(recipe(values["recipe"]), changes))


def _with_configs(record: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The values of a study's record with other forms of its configs."""
    changed = {
        name: [{**each, "config": change(each["config"])} for each in record[name]] for name in ("arms", "searches")
    }
    return {**record, **changed}


def _compact_result(result: Result) -> dict[str, Any]:
    values = rounded(msgspec.to_builtins(replace(result, identity=None)))
    if values["trained"] == values["test"]:
        del values["trained"]
    values |= {"value": result.value, "best": result.best}
    values["test"].pop(result.metric, None)
    return {name: value for name, value in values.items() if name not in FROM_CONFIG and value is not None}


def _expanded_result(values: Mapping[str, Any], config: TrainConfig, identity: Identity) -> dict[str, Any]:
    test = {**values["test"], values["metric"]: values["value"]}
    return {
        "trained": test,
        "merge_difference": None,
        **values,
        "test": test,
        "model": config.model.name,
        "method": config.method.name,
        "seed": config.seed,
        "epochs": config.budget.epochs,
        "identity": identity.digest,
    }


def _points(metrics: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """A few epochs of a curve, evenly spread, by column."""
    curve = [entry for entry in metrics if names[-1] in entry]
    number = min(CURVE_POINTS, len(curve))
    few = [curve[round(place * len(curve) / number) - 1] for place in range(1, number + 1)]
    return {name: [rounded(entry.get(name)) for entry in few] for name in ("epoch", *names)}
