"""Searches on Optuna's journal: resumed, shared, and never stopped by a point that fails."""

import json
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import BEST, RunRecord, SearchRecord
from spatialgrad.studies.run.journal import DAMAGED, JOURNAL
from spatialgrad.studies.run.search import GridSearch, point_value
from spatialgrad.train import Run
from support.studies import InProcess, console, results, run_here, run_quietly, sessions, tiny_study
from support.training import Process, wait_for


@pytest.fixture
def record(tmp_path):
    return make_plan(tiny_study(tuned=True, failing=True), "pocket", tmp_path).record.searches[0]


def finish(folder, value):
    folder.mkdir(parents=True)
    result = {"metric": "accuracy", "value": value, "seconds": 1.0}
    (folder / "result.json").write_text(json.dumps(result))


def trials(folder, name="alpha"):
    """What any program that knows Optuna reads."""
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return optuna.load_study(study_name=name, storage=storage).trials


def states(folder):
    return [trial.state for trial in trials(folder)]


def test_the_whole_grid_is_enqueued_once(record, tmp_path):
    GridSearch(tmp_path, record)
    GridSearch(tmp_path, record)
    found = trials(tmp_path)
    assert [trial.params for trial in found] == [dict(point.values) for point in record.points]
    assert len(found) == 4
    assert states(tmp_path) == [TrialState.WAITING] * 4


def test_two_workers_share_it(record, tmp_path):
    one, other = GridSearch(tmp_path, record), GridSearch(tmp_path, record)
    one.begin(one.runs_of(0)[0])
    other.begin(other.runs_of(1)[0])
    assert states(tmp_path) == [TrialState.RUNNING, TrialState.RUNNING, TrialState.WAITING, TrialState.WAITING]
    for number, value in enumerate((0.4, 0.7, 0.7, 0.1)):
        finish(one.runs_of(number)[0], value)
        (one if number % 2 else other).settle()
    for search in (one, other):
        search.settle()
        assert search.is_complete
        assert search.best() == {"scaling.alpha": 0.8, "optimizer.lr": 1e30}  # of two that are as good, the first
    assert [trial.value for trial in trials(tmp_path)] == [0.4, 0.7, 0.7, 0.1]


def test_a_worker_that_is_gone_is_replaced(record, tmp_path):
    gone = GridSearch(tmp_path, record)
    gone.begin(gone.runs_of(2)[0])
    search = GridSearch(tmp_path, record)
    search.begin(search.runs_of(2)[0])
    finish(search.runs_of(2)[0], 0.3)
    search.settle()
    assert len(trials(tmp_path)) == 4
    assert (trials(tmp_path)[2].state, trials(tmp_path)[2].value) == (TrialState.COMPLETE, 0.3)


def test_failed_points_do_not_stop_it_and_are_tried_again(record, tmp_path):
    search = GridSearch(tmp_path, record)
    for number in (0, 2):
        finish(search.runs_of(number)[0], 0.1 * number)
    search.settle([search.runs_of(1)[0]])
    assert not search.is_complete
    search.settle([search.runs_of(1)[0], search.runs_of(3)[0]])
    assert search.is_complete
    assert search.best() == {"scaling.alpha": 5.0, "optimizer.lr": 0.05}
    assert json.loads((tmp_path / "searches/alpha" / BEST).read_text())["failed"] == 2
    again = GridSearch(tmp_path, record)
    assert not again.is_complete
    assert [state.name for state in states(tmp_path)] == ["COMPLETE", "FAIL", "COMPLETE", "FAIL", "WAITING", "WAITING"]
    finish(again.runs_of(1)[0], 0.9)
    again.settle([again.runs_of(3)[0]])
    assert again.is_complete
    assert again.best() == {"scaling.alpha": 5.0, "optimizer.lr": 0.05}  # arms may be trained with it


def test_every_point_fails(record, tmp_path):
    search = GridSearch(tmp_path, record)
    search.settle([run for number in range(4) for run in search.runs_of(number)])
    assert search.is_complete
    assert search.best() is None


def test_several_seeds_are_averaged(record, tmp_path):
    point = record.points[0]
    runs = tuple(RunRecord(folder=f"point/seed{seed}", seed=seed) for seed in range(2))
    several = type(point)(values=point.values, runs=runs)
    search = GridSearch(tmp_path, SearchRecord(name="alpha", fields=record.fields, points=(several,)))
    finish(tmp_path / "point/seed0", 0.5)
    search.settle()
    assert point_value(tmp_path, several) is None
    assert not search.is_complete
    finish(tmp_path / "point/seed1", 0.7)
    search.settle()
    assert trials(tmp_path)[0].value == pytest.approx(0.6)


def test_a_damaged_journal_is_written_anew(record, tmp_path):
    search = GridSearch(tmp_path, record)
    finish(search.runs_of(0)[0], 0.5)
    search.settle()
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b'{"op_code": 4, "wor\n{"op_code": 5}\n')  # killed while it wrote, and another one wrote on
    said = []
    again = GridSearch(tmp_path, record, said.append)
    again.settle()
    assert DAMAGED in said[0]
    assert (tmp_path / DAMAGED).exists()
    assert states(tmp_path) == [TrialState.COMPLETE] + [TrialState.WAITING] * 3


def test_the_best_point_tunes_the_arm(tmp_path):
    study = tiny_study(tuned=True, failing=True)
    heard = console()
    outcome, launcher = run_here(study, tmp_path, console=heard)
    names = [str(folder.relative_to(tmp_path)) for folder in launcher.order]
    assert names[-1] == "runs/fashion-mnist-tuned/seed0"
    assert len(names) == 4 + 4
    assert len(outcome.failed) == 3  # two points and the wild arm
    assert len(outcome.finished) == 5
    best = json.loads((tmp_path / "searches/alpha" / BEST).read_text())
    values = {trial.params["scaling.alpha"]: trial.value for trial in trials(tmp_path) if trial.value is not None}
    assert best["values"]["scaling.alpha"] == max(values, key=values.get)
    config = Run.open(tmp_path / names[-1]).config
    assert (config.scaling.alpha, config.optimizer.lr) == (best["values"]["scaling.alpha"], 0.05)
    assert config.data.validation == 0
    assert "FAILED: the loss became non-finite" in heard.file.getvalue()

    # Again: what has failed is tried again, and nothing else.
    before = results(tmp_path)
    _, launcher = run_here(study, tmp_path)
    assert len(launcher.order) == 3
    assert results(tmp_path) == before


def test_resumed_in_the_middle(tmp_path):
    class Stopped(Exception):
        pass

    def at_third(folder):
        if len(launcher.order) == 2:
            raise Stopped

    launcher = InProcess(before=at_third)
    study = tiny_study(tuned=True)
    with pytest.raises(Stopped):
        run_here(study, tmp_path, launcher=launcher)
    assert states(tmp_path) == [TrialState.COMPLETE, TrialState.RUNNING]
    before = results(tmp_path)
    outcome, launcher = run_here(study, tmp_path)
    assert not outcome.failed
    assert launcher.order[0] == tmp_path / "searches/alpha/point-1/seed0"
    assert before.items() <= results(tmp_path).items()
    assert states(tmp_path) == [TrialState.COMPLETE] * 2


def test_two_processes_share_a_study(tmp_path):
    """Each run is started once, by one of them, and both see the end of it."""
    Path(tmp_path / "study").mkdir()
    options = ({"tuned": True}, tmp_path / "study", {"num_seeds": 2})
    processes = [Process(*options, function=run_quietly) for _ in range(2)]
    assert [process.wait()[0] for process in processes] == [0, 0]
    wait_for(lambda: len(list((tmp_path / "study").glob("started-*"))) == 2)
    runs = [path.parent for path in (tmp_path / "study").rglob("result.json")]
    assert len(runs) == 2 + 3 * 2
    assert [sessions(run) for run in runs] == [1] * 8
    counts = [int(path.name.split("-")[1]) for path in (tmp_path / "study").glob("started-*")]
    assert sum(counts) == 8
    assert min(counts) > 0
    assert [trial.state for trial in trials(tmp_path / "study")] == [TrialState.COMPLETE] * 2


def test_two_workers_that_tell_at_once(record, tmp_path, monkeypatch):
    """The other one tells just after this one has looked."""
    one, other = GridSearch(tmp_path, record), GridSearch(tmp_path, record)
    before = {number: one._newest(number) for number in range(4)}
    for number in range(4):
        finish(one.runs_of(number)[0], 0.1 * number)
    other.settle()
    monkeypatch.setattr(one, "_newest", before.__getitem__)
    one.settle()
    assert one.is_complete
    assert states(tmp_path) == [TrialState.COMPLETE] * 4
