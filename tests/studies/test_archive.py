"""Archived results: what is in the file, that a report of it says what the study's own says, and that it is reused."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from spatialgrad.cli.main import main
from spatialgrad.report.load import load_results
from spatialgrad.report.page import write_report
from spatialgrad.studies.archive import TAKEN, archive_study, data_fingerprint, read_archive, to_line
from spatialgrad.studies.record import read_best
from spatialgrad.studies.study import Arm
from spatialgrad.train import ConfigError, DamagedFileError, Run
from spatialgrad.train.identity import Identity
from spatialgrad.train.jsonfiles import read_lines
from support.studies import console, results, run_here, tiny_config, tiny_study

ORIGIN, SGS = "runs/fashion-mnist-origin/seed0", "runs/fashion-mnist-sgs-ours/seed1"
FILE = "tiny-pocket.jsonl"


def edit(path, run, change):
    """Change the line of a run."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edited = [change(line) if line.get("run") == run else line for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in edited if line is not None))


def tables(folder):
    return [line for line in (folder / "report.md").read_text().splitlines() if line.startswith("|")]


def test_a_line_per_run_small_and_without_paths(trained, archive):
    text = (archive / FILE).read_text()
    head, *lines = map(json.loads, text.splitlines())
    assert {line["run"] for line in lines} == {str(path.parent.relative_to(trained)) for path in results(trained)}
    assert head["study"]["arms"][0]["config"]["recipe"] == "pocket"
    assert head["choices"] == {"alpha": read_best(trained, "alpha")}
    assert max(map(len, text.splitlines()[1:])) < 2500
    assert str(trained.parent) not in text
    environments = read_lines(archive / "environments.jsonl")
    assert {line["environment"] for line in lines} == {each["id"] for each in environments}
    assert "command" not in environments[0]


def test_what_survives(trained, archive):
    ours, theirs = read_archive(archive / FILE).runs[SGS], Run.open(trained / SGS)
    assert (ours.digest, ours.identity.data, ours.identity.processes) == (theirs.digest, theirs.identity.data, 1)
    assert ours.identity.data is not None
    assert ours.result.value == theirs.result.value
    assert ours.result.test == pytest.approx(theirs.result.test, rel=1e-5)
    assert ours.result.update_seconds == pytest.approx(theirs.result.update_seconds, rel=1e-5)
    assert [entry["test_accuracy"] for entry in ours.metrics] == pytest.approx(
        [entry["test_accuracy"] for entry in theirs.metrics], rel=1e-5
    )
    for update, whole in ((ours.scalings[0], theirs.scalings[0]), (ours.scalings[-1], theirs.scalings[-1])):
        for name, rows in whole["scalings"].items():
            for row, expected in zip(update["scalings"][name], rows, strict=True):
                assert row == pytest.approx(expected, rel=6e-3)


def test_ten_points_of_a_long_curve_with_the_last(trained, tmp_path):
    run = shutil.copytree(trained / ORIGIN, tmp_path / "long")
    lines = [{"epoch": epoch, "train_accuracy": 0.1, "test_accuracy": epoch / 100} for epoch in range(57)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert to_line(Run.open(run))["metrics"]["epoch"] == [5, 10, 16, 22, 27, 33, 39, 45, 50, 56]


def test_the_report_of_an_archive_has_the_same_tables(trained, archive, tmp_path):
    write_report([trained], tmp_path / "own")
    write_report([archive / FILE], tmp_path / "archived")
    assert tables(tmp_path / "own") == tables(tmp_path / "archived")
    assert any("SGS" in line for line in tables(tmp_path / "archived"))


def test_archiving_again_changes_nothing_and_adds_what_is_new(trained, archive):
    before = (archive / FILE).read_bytes()
    assert archive_study(trained, archive) == archive / FILE
    assert (archive / FILE).read_bytes() == before
    edit(archive / FILE, ORIGIN, lambda line: None)
    archive_study(trained, archive)
    assert (archive / FILE).read_bytes() == before


DAMAGE = {"config.json": "[]", "environment.json": "{", "metrics.jsonl": "{{{\n", "result.json": '{"accuracy": 0.'}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_named_and_the_others_are_archived(finished, tmp_path, name):
    (finished / ORIGIN / name).write_text(DAMAGE[name])
    with pytest.raises(DamagedFileError, match=rf"(?s)not archived.*{finished / ORIGIN}.*{re.escape(name)}"):
        archive_study(finished, tmp_path / "new")
    archived = read_archive(tmp_path / "new" / FILE).runs
    assert {name for name, run in archived.items() if not run.is_finished} == {ORIGIN}
    if name in ("environment.json", "metrics.jsonl"):  # a study that finds it so goes on
        heard = console()
        jobs, _ = run_here(tiny_study(tuned=True), finished, num_seeds=2, archive=tmp_path / "2", console=heard)
        assert len(jobs.finished) == 8
        assert re.search(rf"{finished / ORIGIN} has finished, but is not archived: .*{name}", heard.file.getvalue())


def test_another_run_in_the_place_of_the_planned_one_is_not_archived(finished, tmp_path):
    shutil.rmtree(finished / ORIGIN)
    shutil.copytree(finished / "runs/fashion-mnist-sgs-ours/seed0", finished / ORIGIN)
    with pytest.raises(
        DamagedFileError, match=rf"{finished / ORIGIN}: config.json is that of another run .*'sgs' there"
    ):
        archive_study(finished, tmp_path / "new")


def test_another_study_is_not_mixed_in(trained, tmp_path):
    run_here(tiny_study(name="other"), tmp_path / trained.name, archive=tmp_path / "new", only=["origin"])
    with pytest.raises(ConfigError, match="archives the study other"):
        archive_study(trained, tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: {**line, "config": {**line["config"], "optimizer.lr": 0.06}}, "does not have the digest"),
        (lambda line: {**line, "config": {"recipe": "none"}}, "is damaged"),
        (lambda line: {"run": line["run"]}, "is damaged"),
    ],
)
def test_a_changed_line_is_named(trained, archive, tmp_path, change, message):
    edit(archive / FILE, ORIGIN, change)
    with pytest.raises(DamagedFileError, match=rf"line \d+ of .*{FILE} {message}|line \d+ of .*{message}"):
        read_archive(archive / FILE)
    heard = console()
    _, executor = run_here(tiny_study(), tmp_path / "lost", archive=archive, console=heard)
    assert len(executor.order) == 2  # nothing of this archive is used
    assert re.search(rf"not used: line \d+ of .*{FILE}", heard.file.getvalue().replace("\n", ""))


def test_from_the_command_line(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "archive", str(trained)]) == 0
    assert capsys.readouterr().out.strip() == f"results/{FILE}"
    for name in ("results/tiny-pocket.jsonl", "results/tiny-pocket"):
        assert main(["report", name]) == 0
        assert (tmp_path / "report/index.html").exists()
        assert main(["study", "status", name]) == 0
        assert "8 runs, 8 finished" in capsys.readouterr().out


class TestReuse:
    """A run with the same identity is not trained again, if its weights are not needed."""

    def test_a_study_continues_after_its_folder_is_lost(self, trained, archive, tmp_path):
        folder, heard = tmp_path / trained.name, console()
        jobs, executor = run_here(tiny_study(tuned=True), folder, num_seeds=3, archive=archive, console=heard)
        assert {(run.parent.name, run.name) for run in executor.order} == {
            (f"fashion-mnist-{name}", "seed2") for name in ("origin", "sgs-ours", "tuned")
        }
        assert f"Reusing 8 archived results from {archive} (no weights)." in heard.file.getvalue().replace("\n", " ")
        assert (len(jobs.finished), jobs.failed) == (11, {})
        assert {run.state for run in load_results(folder).runs} == {"finished"}
        assert sum(run.is_finished for run in read_archive(archive / FILE).runs.values()) == 11
        # The folder needs the archive no more.
        shutil.rmtree(archive)
        jobs, executor = run_here(tiny_study(tuned=True), folder, num_seeds=3)
        assert (len(jobs.finished), executor.order) == (11, [])

    def test_the_same_run_of_another_study_serves(self, archive, tmp_path):
        jobs, executor = run_here(tiny_study(name="other"), tmp_path / "other-pocket", archive=archive)
        assert (len(jobs.finished), executor.order) == (2, [])
        there = {name for name, run in read_archive(archive / "other-pocket.jsonl").runs.items() if run.is_finished}
        assert there == {ORIGIN, "runs/fashion-mnist-sgs-ours/seed0"}

    def test_a_kill_while_a_run_is_taken_loses_nothing(self, archive, tmp_path):
        run_here(tiny_study(), tmp_path / "study", archive=archive)
        with open(tmp_path / "study" / TAKEN, "ab") as file:
            file.write(b'{"run": "runs/fash')
        jobs, executor = run_here(tiny_study(), tmp_path / "study", num_seeds=2, archive=archive)
        assert (len(jobs.finished), executor.order) == (4, [])

    def test_another_config_or_a_run_that_has_begun(self, archive, tmp_path):
        _, executor = run_here(tiny_study(epochs=3), tmp_path / "longer", archive=archive, only=["origin"])
        assert len(executor.order) == 1
        begun = Run.open(tmp_path / "begun" / ORIGIN)
        begun.plan(replace(tiny_config(), out=begun.folder))
        _, executor = run_here(tiny_study(), tmp_path / "begun", archive=archive)
        assert executor.order == [begun.folder]

    @pytest.mark.parametrize(("data", "processes", "used"), [("other", 1, 0), (None, 1, 1), (None, 2, 0)])
    def test_other_images_and_another_number_of_processes(self, archive, tmp_path, data, processes, used):
        """The images that a run was trained on belong to its identity; old runs do not say which they were."""
        config = read_archive(archive / FILE).runs[ORIGIN].config
        identity = Identity(config, data, processes)
        change = {"data": data, "processes": processes, "digest": identity.digest}
        edit(archive / FILE, ORIGIN, lambda line: {**line, **change})
        _, executor = run_here(tiny_study(), tmp_path / "study", archive=archive, only=["origin"])
        assert len(executor.order) == 1 - used

    def test_backbones_are_trained_if_their_weights_are_needed(self, tmp_path):
        group = {"Dataset": "Fashion-MNIST"}
        search = Arm(group=group, label="search", config=tiny_config("repopt-search", epochs=1), shown=False)
        use = Arm(group=group, label="use", config=tiny_config("repopt", epochs=1), backbone=search.key)
        study = replace(tiny_study(name="chain"), arms=lambda scale: (search, use))
        run_here(study, tmp_path / "chain", archive=tmp_path / "results")
        shutil.rmtree(tmp_path / "chain")
        _, executor = run_here(study, tmp_path / "chain", archive=tmp_path / "results")
        assert executor.order == []
        shutil.rmtree(tmp_path / "chain")
        edit(tmp_path / "results/chain.jsonl", "runs/fashion-mnist-use/seed0", lambda line: None)
        _, executor = run_here(study, tmp_path / "chain", archive=tmp_path / "results")
        assert len(executor.order) == 2


def test_the_fingerprint_is_that_of_a_training(trained):
    run = Run.open(trained / ORIGIN)
    assert data_fingerprint(run.config) == run.identity.data
    assert data_fingerprint(replace(run.config, data=replace(run.config.data, name="folder:nowhere"))) is None
