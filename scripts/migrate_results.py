"""Convert results that were kept as one file per run into archives: one file of JSON lines per study.

Run: python scripts/migrate_results.py [FOLDER ...] [--into results]

Reads every NAME-SCALE/study.json in the folders (by default results/) and adds its runs to INTO/NAME-SCALE.jsonl. It
can be repeated: runs that are already archived stay as they are. Old runs do not say which images they were trained on;
they are stamped with the fingerprint of the data set that they name, if it is under $SPATIALGRAD_DATA.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spatialgrad.studies.archive import add_to_archive, archive_of, archives_in, data_fingerprint, read_archive
from spatialgrad.studies.record import StudyRecord, to_record
from spatialgrad.studies.registry import STUDIES
from spatialgrad.train.config import from_dict, to_dict
from spatialgrad.train.run import Run


def old_record(folder: Path) -> StudyRecord:
    """The record of a study of format 1, without arms that the study no longer has."""
    values = json.loads((folder / "study.json").read_text())
    if values["format"] != 1:
        return to_record(values, str(folder))
    known = {arm.key for arm in STUDIES[values["name"]].arms(values["scale"])} if values["name"] in STUDIES else None
    arms = [arm for arm in values["arms"] if known is None or arm["key"] in known]
    searches = []
    for search in values["searches"]:
        columns = {name: [point["values"][name] for point in search["points"]] for name in search["fields"]}
        grid = {name: list(dict.fromkeys(column)) for name, column in columns.items()}
        searches.append({**search, "grid": dict(zip(search["fields"], [search["bounds"]], strict=True))
                         if search.get("bounds") else grid})  # fmt: skip
    record = to_record({**values, "format": 2, "arms": arms, "searches": searches}, str(folder))
    seeds = sorted({run.seed for arm in record.arms for run in arm.runs})
    order = tuple(key for key in record.order if known is None or key in known)
    return replace(record, order=order, seeds=tuple(seeds))


def old_run(path: Path) -> Run:
    """A run that was kept as one file."""
    values = json.loads(path.read_text())
    config, result, environment = (values[f"{name}.json"] for name in ("config", "result", "environment"))
    renamed: dict[str, Any] = {
        **result,
        "update_seconds": result.get("update_seconds", result.get("scaling_seconds")),
        "no_effect": result.get("no_effect", result.get("inaction")),
    }
    columns = values["metrics.jsonl"]
    identity = {"data": data_fingerprint(from_dict(config)), "processes": environment.get("processes", 1)}
    record = {
        "config": {**config, "identity": identity},
        "result": renamed,
        "environment": environment,
        "metrics": [
            {name: value for name, value in zip(columns, row, strict=True) if value is not None}
            for row in zip(*columns.values(), strict=True)
        ],
        "timings": values["timings.jsonl"],
        "scalings": values["scalings.jsonl"],
    }
    return Run.from_record(record, str(path))


def migrate(folder: Path, into: Path) -> str:
    """Archive one old study; returns what was done."""
    record, path = old_record(folder), archive_of(folder, into)
    there = {name for name, run in read_archive(path).runs.items() if run.is_finished} if path.exists() else set()
    files = {name: folder / f"{name}.json" for name in record.runs}
    runs = {name: old_run(file) for name, file in files.items() if file.exists() and name not in there}
    best = {search.name: folder / "searches" / search.name / "best.json" for search in record.searches}
    choices = {name: json.loads(file.read_text())["values"] for name, file in best.items() if file.exists()}
    if record.arms or runs:
        add_to_archive(path, record, choices, runs)
    unstamped = sum(run.identity.data is None for run in runs.values())
    return f"{path}: {len(runs)} runs added, {len(there)} were there" + (
        f"; {unstamped} without a fingerprint, because their data set was not found" if unstamped else ""
    )


def stamp(path: Path) -> str:
    """Compute the fingerprints of an archive's runs again, for example after their definition has changed."""
    archive, stamped = read_archive(path), {}
    for name, run in archive.runs.items():
        if run.result is None:
            continue
        data = data_fingerprint(run.config) or run.identity.data
        identity = {"data": data, "processes": run.identity.processes}
        parts = ("environment", "metrics", "timings", "scalings")
        values = {
            "config": {**to_dict(run.config), "identity": identity},
            "result": asdict(run.result),
            **{part: getattr(run, part) for part in parts},
        }
        stamped[name] = Run.from_record(values, run.name)
    add_to_archive(path, archive.record, archive.choices, stamped)
    return f"{path}: {sum(run.identity.data is not None for run in stamped.values())} of {len(stamped)} runs stamped"


def main() -> None:
    """Convert the folders that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("results")])
    parser.add_argument("--into", type=Path, default=Path("results"))
    parser.add_argument("--stamp", action="store_true", help="only compute the fingerprints in INTO again")
    options = parser.parse_args()
    if options.stamp:
        for path in archives_in(options.into):
            print(stamp(path))
        return
    for folder in options.folders:
        for study in sorted(folder.glob("*/study.json")):
            print(migrate(study.parent, options.into))


if __name__ == "__main__":
    main()
