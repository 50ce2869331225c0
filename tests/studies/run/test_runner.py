"""What is run, what is not, and what is told."""

import io
import json
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.run.folders import prepare
from spatialgrad.studies.run.runner import LAUNCH_LOCK
from spatialgrad.studies.run.status import record_failure, run_status
from spatialgrad.studies.study import Arm
from spatialgrad.train import ConfigError, InterruptedTraining
from spatialgrad.train.locks import locked
from spatialgrad.train.signals import Stop
from support.studies import InProcess, console, results, run_here, tiny_config, tiny_study
from support.training import assert_same_run, quietly


def test_every_run_once_and_as_a_plain_training(tmp_path):
    outcome, launcher = run_here(tiny_study(), tmp_path, num_seeds=2)
    assert len(outcome.finished) == len(launcher.order) == 4
    assert all(run_status(folder).state == "finished" for folder in launcher.order)
    quietly(replace(tiny_config("sgs"), out=tmp_path / "plain", seed=1))
    assert_same_run(tmp_path / "runs/fashion-mnist-sgs-ours/seed1", tmp_path / "plain")
    before = results(tmp_path)
    _, launcher = run_here(tiny_study(), tmp_path, num_seeds=3)
    assert [folder.name for folder in launcher.order] == ["seed2", "seed2"]
    assert before.items() <= results(tmp_path).items()


def test_a_failed_run_does_not_spoil_the_others(tmp_path):
    heard = console()
    outcome, _ = run_here(tiny_study(failing=True), tmp_path, console=heard)
    (failed,) = outcome.failed
    assert len(outcome.finished) == 2
    status = run_status(failed)
    assert status.state == "failed"
    assert "non-finite" in status.message
    assert json.loads((failed / "failure.json").read_text())["exit_code"] == 3
    said = heard.file.getvalue()
    assert "[3/3]" in said
    assert "wild · seed 0: FAILED: the loss became non-finite" in said
    assert "accuracy" in said
    assert "left" in said


def test_a_run_in_use_is_waited_for(tmp_path):
    """Whoever holds a run's launch.lock has it; what it leaves undone is taken up."""
    study = tiny_study()
    taken = make_plan(study, "pocket", tmp_path).jobs[0].folder
    lock = locked(taken, LAUNCH_LOCK)
    lock.__enter__()

    class Launcher(InProcess):
        looks = 0

        def ended(self, timeout):
            Launcher.looks += 1
            if Launcher.looks == 5:
                lock.__exit__(None, None, None)
            return super().ended(0)

    outcome, launcher = run_here(study, tmp_path, launcher=Launcher())
    assert launcher.order[-1] == taken
    assert len(launcher.order) == 2
    assert not outcome.failed


def test_a_run_that_fails_elsewhere_is_not_tried_here(tmp_path):
    study = tiny_study()
    first, second = make_plan(study, "pocket", tmp_path).jobs

    def fail_elsewhere(folder):
        second.folder.mkdir(parents=True)
        prepare(second)
        record_failure(second.folder, "someone else's", 1)

    outcome, launcher = run_here(study, tmp_path, launcher=InProcess(before=fail_elsewhere))
    assert launcher.order == [first.folder]
    assert outcome.failed == {second.folder: "someone else's"}
    # That was before the next command, which tries it again.
    _, launcher = run_here(study, tmp_path)
    assert launcher.order == [second.folder]
    assert run_status(second.folder).state == "finished"
    assert not (second.folder / "failure.json").exists()


def test_a_failure_from_a_clock_that_was_ahead_is_tried_again(tmp_path, monkeypatch):
    """What failed before a command started, and what after, does not depend on anybody's clock."""
    study = tiny_study()
    first, second = make_plan(study, "pocket", tmp_path).jobs
    first.folder.mkdir(parents=True)
    prepare(first)
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: 4e9)
        record_failure(first.folder, "from the future", 1)

    def fail_elsewhere(folder):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: 0.0)
            second.folder.mkdir(parents=True, exist_ok=True)
            prepare(second)
            record_failure(second.folder, "from the past", 1)

    outcome, launcher = run_here(study, tmp_path, launcher=InProcess(before=fail_elsewhere))
    assert launcher.order == [first.folder]
    assert outcome.failed == {second.folder: "from the past"}


def test_a_signal_stops_between_runs(tmp_path):
    stop = Stop()

    def interrupt(folder):
        stop.signal = signal.SIGTERM

    with pytest.raises(InterruptedTraining, match=r"(?s)stopped with 1 of 2 runs unfinished.*the same command"):
        run_here(tiny_study(), tmp_path, launcher=InProcess(before=interrupt), stop=stop)
    outcome, _ = run_here(tiny_study(), tmp_path)
    assert len(outcome.finished) == 2


def test_arms_that_need_what_has_failed_are_named(tmp_path):
    def arms(scale):
        group = {"Model": "VGG"}
        return (
            Arm(group=group, label="backbone", config=tiny_config(optimizer={"lr": 1e30}), shown=False),
            Arm(group=group, label="fine-tuned", config=tiny_config("sgs"), backbone="vgg-backbone"),
        )

    outcome, launcher = run_here(replace(tiny_study(), arms=arms), tmp_path)
    assert len(launcher.order) == 1
    assert list(outcome.blocked) == [tmp_path / "runs/vgg-fine-tuned/seed0"]
    assert "its backbone in" in next(iter(outcome.blocked.values()))


def test_a_search_without_a_point_left_blocks_its_arm(tmp_path):
    study = tiny_study(tuned=True)

    def searches(scale):
        (search,) = study.searches(scale)
        return (replace(search, grid={"scaling.alpha": (0.8, 5.0), "optimizer.lr": (1e30,)}),)

    outcome, _ = run_here(replace(study, searches=searches), tmp_path, only=["tuned"])
    assert len(outcome.failed) == 2
    assert list(outcome.blocked.values()) == ["every point of the search alpha failed"]


def test_a_folder_with_another_run_is_refused(tmp_path):
    study = tiny_study()
    folder = make_plan(study, "pocket", tmp_path).jobs[0].folder
    quietly(replace(tiny_config(epochs=1), out=folder))
    (folder / "result.json").unlink()
    outcome, launcher = run_here(study, tmp_path)
    assert "holds a run of 1 epochs, which cannot be extended to --epochs 2" in outcome.blocked[folder]
    assert folder not in launcher.order
    assert len(outcome.finished) == 1  # the others
    with locked(folder, LAUNCH_LOCK):  # it was given back
        pass


def test_machine_options_of_the_last_command_count(tmp_path):
    study = tiny_study()
    run_here(study, tmp_path, only=["origin"], changes={"data.root": tmp_path})
    folder = make_plan(study, "pocket", tmp_path).jobs[0].folder
    (folder / "result.json").unlink()
    run_here(study, tmp_path, only=["origin"], changes={"machine.workers": 3})
    config = json.loads((folder / "config.json").read_text())
    assert (config["machine"]["workers"], config["data"]["root"]) == (3, None)


def test_what_is_asked_for_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no arm matches --only 'dbb'"):
        run_here(tiny_study(), tmp_path, only=["dbb"])


def test_a_terminal_that_is_gone_ends_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("os.dup2", lambda *args: None)  # rich would close the real standard output

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    outcome, _ = run_here(tiny_study(), tmp_path, only=["origin"], console=Console(file=Gone()))
    assert len(outcome.finished) == 1
