"""What is run, what is not, and what is told."""

import io
import json
import signal
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from spatialgrad.studies.console import StudyReporter
from spatialgrad.studies.launch import LocalExecutor
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.runner import LAUNCH_LOCK, prepare, run_plan
from spatialgrad.studies.study import Arm
from spatialgrad.train import ConfigError, InterruptedTraining, Run
from spatialgrad.train.locks import locked
from spatialgrad.train.signals import Stop
from support.studies import Pretending, console, results, run_here, tiny_config, tiny_study
from support.training import assert_same_run, quietly, tiny


def test_every_run_once_and_as_a_plain_training(tmp_path):
    jobs, executor = run_here(tiny_study(), tmp_path, num_seeds=2)
    assert len(jobs.finished) == len(executor.order) == 4
    assert all(Run.open(folder).state == "finished" for folder in executor.order)
    quietly(replace(tiny_config("sgs"), out=tmp_path / "plain", seed=1))
    assert_same_run(tmp_path / "runs/fashion-mnist-sgs-ours/seed1", tmp_path / "plain")
    before = results(tmp_path)
    _, executor = run_here(tiny_study(), tmp_path, num_seeds=3)
    assert [folder.name for folder in executor.order] == ["seed2", "seed2"]
    assert before.items() <= results(tmp_path).items()


def test_a_failed_run_does_not_spoil_the_others(tmp_path):
    heard = console()
    jobs, _ = run_here(tiny_study(failing=True), tmp_path, console=heard)
    (failed,) = jobs.failed
    assert len(jobs.finished) == 2
    assert Run.open(failed).state == "failed"
    assert "non-finite" in Run.open(failed).failure
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
    threading.Timer(2.0, lock.__exit__, (None, None, None)).start()
    jobs, executor = run_here(study, tmp_path, executor=Pretending())
    assert executor.order[-1] == taken
    assert len(executor.order) == 2
    assert not jobs.failed


def test_only_what_failed_before_the_command_started_is_tried_again(tmp_path, monkeypatch):
    """Whatever the clocks of other machines say."""
    study = tiny_study()
    first, second = make_plan(study, "pocket", tmp_path).jobs

    def fail_elsewhere(job, clock, message):
        job.folder.mkdir(parents=True, exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: clock)
            prepare(job)
            Run.open(job.folder).record_failure(message, 1)

    fail_elsewhere(first, 4e9, "from the future")
    executor = Pretending(before=lambda folder: fail_elsewhere(second, 0.0, "from the past"))
    jobs, executor = run_here(study, tmp_path, executor=executor)
    assert executor.order == [first.folder]
    assert jobs.failed == {second.folder: "from the past"}
    _, executor = run_here(study, tmp_path, executor=Pretending())
    assert executor.order == [second.folder]
    assert not (second.folder / "failure.json").exists()


def test_a_signal_stops_between_runs(tmp_path):
    stop = Stop()

    def interrupt(folder):
        stop.signal = signal.SIGTERM

    with pytest.raises(InterruptedTraining, match=r"(?s)stopped with 1 of 2 runs unfinished.*the same command"):
        run_here(tiny_study(), tmp_path, executor=Pretending(before=interrupt), stop=stop)
    jobs, _ = run_here(tiny_study(), tmp_path, executor=Pretending())
    assert len(jobs.finished) == 2


def test_arms_that_need_what_has_failed_are_named(tmp_path):
    def arms(scale):
        group = {"Model": "VGG"}
        return (
            Arm(group=group, label="backbone", config=tiny_config(optimizer={"lr": 1e30}), shown=False),
            Arm(group=group, label="fine-tuned", config=tiny_config("sgs"), backbone="vgg-backbone"),
        )

    jobs, executor = run_here(replace(tiny_study(), arms=arms), tmp_path)
    assert len(executor.order) == 1
    assert list(jobs.failed) == [tmp_path / f"runs/vgg-{name}/seed0" for name in ("backbone", "fine-tuned")]
    assert "the run that it starts from" in jobs.failed[tmp_path / "runs/vgg-fine-tuned/seed0"]


def test_scalings_of_one_run_are_fixed_in_another(tmp_path):
    def arms(scale):
        measured = Arm(group={}, label="measured", config=tiny_config("sgs", epochs=3))
        fixed = Arm(group={}, label="fixed", config=tiny_config("sgs-static", epochs=1), backbone=measured.key)
        return measured, fixed

    jobs, _ = run_here(replace(tiny_study(), arms=arms), tmp_path)
    assert not jobs.failed
    measured, fixed = (Run.open(tmp_path / f"runs/{name}/seed0") for name in ("measured", "fixed"))
    assert fixed.config.scaling.fixed == measured.folder
    assert fixed.scalings[0]["scalings"] == measured.scalings[-1]["scalings"] != measured.scalings[0]["scalings"]
    with pytest.raises(ConfigError, match=r"--scaling\.fixed: the run in .*nowhere has logged no scalings"):
        quietly(tiny(tmp_path / "new", "sgs-static", scaling={"fixed": tmp_path / "nowhere"}))
    assert not (tmp_path / "new").exists()


def test_a_search_without_a_point_left_blocks_its_arm(tmp_path):
    study = tiny_study(tuned=True)

    def searches(scale):
        (search,) = study.searches(scale)
        return (replace(search, grid={"scaling.alpha": (0.8, 5.0), "optimizer.lr": (1e30,)}),)

    jobs, _ = run_here(replace(study, searches=searches), tmp_path, only=["tuned"])
    assert len(jobs.failed) == 3
    assert list(jobs.failed.values())[-1] == "every point of the search alpha failed"


def test_a_folder_with_another_run_is_refused(tmp_path):
    study = tiny_study()
    folder = make_plan(study, "pocket", tmp_path).jobs[0].folder
    quietly(replace(tiny_config(epochs=1), out=folder))
    (folder / "result.json").unlink()
    jobs, executor = run_here(study, tmp_path, executor=Pretending())
    assert "holds a run of 1 epochs, which cannot be extended to --epochs 2" in jobs.failed[folder]
    assert folder not in executor.order
    assert len(jobs.finished) == 1  # the others
    with locked(folder, LAUNCH_LOCK):  # it was given back
        pass


def test_more_processes_than_gpus_are_refused_at_once(tmp_path):
    plan = make_plan(tiny_study(), "pocket", tmp_path / "study")
    executor = LocalExecutor(gpus=["0", "1"])
    with pytest.raises(ConfigError, match=r"--processes 4: this machine has 2 GPUs"):
        run_plan(plan, executor, processes=4, console=console())
    assert not list(tmp_path.iterdir())


def test_a_folder_with_spaces_is_quoted_in_commands(tmp_path):
    folder, heard = tmp_path / "my study", console()
    run_plan(make_plan(tiny_study(), "pocket", folder), Pretending(), console=heard)
    assert f"2 runs finished. Show the results: spatialgrad report '{folder}'" in heard.file.getvalue()


def test_machine_options_of_the_last_command_count(tmp_path):
    study = tiny_study()
    run_here(study, tmp_path, only=["origin"], changes={"data.root": tmp_path}, executor=Pretending())
    folder = make_plan(study, "pocket", tmp_path).jobs[0].folder
    (folder / "result.json").unlink()
    run_here(study, tmp_path, only=["origin"], changes={"machine.workers": 3}, executor=Pretending())
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

    jobs, _ = run_here(tiny_study(), tmp_path, only=["origin"], console=Console(file=Gone()), executor=Pretending())
    assert len(jobs.finished) == 1


def test_a_refused_config_is_not_tried_with_further_seeds(tmp_path):
    """One error is told once: the other seeds of the arm would be refused for the same reason."""
    study, heard = tiny_study(), console()
    arms = (*study.arms("pocket"), Arm(group={}, label="lost", config=tiny_config(data={"name": "folder:nowhere"})))
    jobs, executor = run_here(replace(study, arms=lambda scale: arms), tmp_path, num_seeds=3, executor=Refusing(),
                                 console=heard)  # fmt: skip
    assert len(jobs.finished) == 6
    assert sum(folder.parent.name == "lost" for folder in executor.order) == 1
    assert list(jobs.failed) == [tmp_path / f"runs/lost/seed{seed}" for seed in range(3)]
    assert "lost · seed 2: FAILED: not started: as lost · seed 0: no images" in heard.file.getvalue()


class Refusing(Pretending):
    """Refuses the data set that is not there, as a run's process does."""

    def train(self, folder):
        if "nowhere" in Run.open(folder).config.data.name:
            error = ConfigError("no images")
            raise error
        super().train(folder)


def test_progress_is_logged_once_a_minute(tmp_path):
    """Where there is no terminal: a line for each run that has made progress."""
    now, heard = [0.0], console()
    reporter = StudyReporter(heard, clock=lambda: now[0])
    job = make_plan(tiny_study(), "pocket", tmp_path).jobs[0]
    job.folder.mkdir(parents=True)
    for seconds, epochs in ((10, 1), (61, 1), (122, 1), (183, 2)):
        now[0] = seconds
        lines = [{"epoch": epoch, "test_loss": 1.5, "test_accuracy": 0.25} for epoch in range(epochs)]
        (job.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        reporter.look([job])
    assert (
        heard.file.getvalue().splitlines()
        == ["  Fashion-MNIST · Origin · seed 0: epoch 2/2, test loss 1.500 · test accuracy 25.0 %"] * 2
    )


def test_the_time_of_all_runs_is_estimated_after_the_first_steps(tmp_path):
    """Once, and from what the runs themselves log."""
    heard = console()
    reporter = StudyReporter(heard)
    jobs = make_plan(tiny_study(epochs=8), "pocket", tmp_path, num_seeds=5).jobs
    reporter.start(len(jobs), 0)
    quietly(replace(jobs[0].config, out=jobs[0].folder))
    entry = next(entry for entry in Run.open(jobs[0].folder).timings if "step_seconds" in entry)
    assert (entry["step"], entry["steps"]) == (20, 8 * 5)
    entry["step_seconds"], entry["steps"] = 0.9, 4000
    jobs[1].folder.mkdir(parents=True)
    running = [jobs[1], jobs[2]]
    reporter.look(running)
    assert "Estimated" not in heard.file.getvalue()
    (jobs[1].folder / "timings.jsonl").write_text(f"{json.dumps(entry)}\n")
    for _ in range(2):
        reporter.look(running)
    lines = [line for line in heard.file.getvalue().splitlines() if line.startswith("Estimated")]
    expected = "Estimated time: 1 h 00 min per run, 5 h 00 min for 10 runs (2 at a time), if all take as long as "
    assert lines == [f"{expected}{jobs[1].title}."]
