"""The search over k: sampled, pruned, interrupted, resumed and rebuilt from the folders of its trials; what follows it.

The executor here writes what a training would write; real trainings are in `tests/cli/test_tune.py`.
"""

import json
import shutil
import signal
import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest

from spatialgrad.studies.console import StudyReporter
from spatialgrad.studies.launch import Ended
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import read_study
from spatialgrad.studies.registry import FailedRunsError
from spatialgrad.studies.runner import run_jobs
from spatialgrad.studies.tune import (
    RANDOM_TRIALS,
    TrialJobs,
    check_bounds,
    check_config,
    finalists,
    ks_of,
    rounded,
    tune_study,
    with_k,
)
from spatialgrad.train import ConfigError, DamagedFileError, InterruptedTraining, OtherConfigError, Run
from spatialgrad.train.config import with_values
from spatialgrad.train.locks import locked
from spatialgrad.train.signals import Stop
from support.studies import console, tiny_config, write_result

EPOCHS = 6
BOUNDS = (1.0, 20.0)
CONFIG = tiny_config("sgs", epochs=EPOCHS, data={"validation": 0.2, "limit": 120})


def quality(k):
    """The best k is 3; far from it, a training is hopeless from the beginning."""
    return 0.9 - 0.01 * abs(k - 3)


class Scripted:
    """Trains one epoch per look of the source, and stops when it is cancelled.

    Args:
        codes: Exit codes of trainings that fail, by the number of their start.
        stop: Receives a signal once so many trainings were started.
    """

    slots = 1

    def __init__(self, codes=None, stop=None, stop_after=None):
        self.codes, self.stop_signal, self.stop_after = codes or {}, stop, stop_after
        self.started, self.cancelled, self.ks, self.running = [], [], [], None

    def submit(self, folder, *, processes):
        self.started.append(folder)
        self.ks.append(Run.open(folder).config.scaling.k)
        if self.stop_signal is not None and len(self.started) == self.stop_after:
            self.stop_signal.signal = signal.SIGINT
        self.running = folder, Future()
        return self.running[1]

    def cancel(self, folder):
        self.cancelled.append(folder)
        self.running[1].set_result(Ended(exit_code=143))

    def close(self):
        pass

    def step(self):
        """One epoch of the running training."""
        if self.running is None or self.running[1].done():
            return
        folder, future = self.running
        epoch = Run.open(folder).epoch
        if (code := self.codes.get(len(self.started) - 1)) is not None:
            future.set_result(Ended(exit_code=code, message="it broke"))
        elif epoch == EPOCHS:
            write_result(folder, quality(self.ks[-1]))
            future.set_result(Ended(exit_code=0))
        else:
            write_epoch(folder, epoch)


def write_epoch(folder, epoch):
    value = quality(Run.open(folder).config.scaling.k) * (epoch + 1) / EPOCHS
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"epoch": epoch, "test_accuracy": value}) + "\n")


def jobs_in(folder, num_trials=3, config=CONFIG, bounds=BOUNDS, heard=None, **options):
    return TrialJobs(folder, config, bounds, num_trials, StudyReporter(heard or console()), **options)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr("spatialgrad.studies.runner.POLL", 0.0)


def run(folder, num_trials, executor=None, stop=None, **options):
    """Search, and return the trials and the executor."""
    executor, jobs = executor or Scripted(), jobs_in(folder, num_trials, **options)

    class Stepping(StudyReporter):
        def look(self, running):
            executor.step()

    run_jobs(jobs, executor, Stepping(console()), stop or Stop())
    return jobs.trials, executor


def interrupted(folder, after=2):
    """A search of three trials that was interrupted just after one of them had begun."""
    stop = Stop()
    executor = Scripted(stop=stop, stop_after=after)
    with pytest.raises(InterruptedTraining, match=r"trials finished; the running ones have saved"):
        run(folder, 3, executor, stop)
    return executor


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Twelve trials in one go."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spatialgrad.studies.runner.POLL", 0.0)
        trials, executor = run(folder, 12)
    return folder, trials, executor


def test_the_own_k_comes_first_and_the_rest_lies_between_the_bounds(whole):
    _, trials, executor = whole
    assert executor.ks[0] == 5.0
    assert executor.ks == [trial.k for trial in trials]
    assert len(set(executor.ks)) == 12
    assert all(1 <= k <= 20 for k in executor.ks)
    # Sampled on a logarithmic scale, and towards the best.
    assert sum(k < 4.5 for k in executor.ks) >= 4


def test_hopeless_trainings_are_stopped_early(whole):
    _, trials, executor = whole
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert [trial.folder for trial in pruned] == executor.cancelled != []
    for trial in pruned:
        assert trial.number >= RANDOM_TRIALS
        assert EPOCHS // 3 < Run.open(trial.folder).epoch < EPOCHS
        assert "stopped after epoch" in Run.open(trial.folder).failure
    finished = [trial.k for trial in trials if trial.state == "finished"]
    assert min(abs(k - 3) for k in finished) <= min(abs(trial.k - 3) for trial in pruned)


def test_the_record_lists_the_trials_that_count(whole):
    folder, trials, _ = whole
    (listed,) = read_study(folder).searches
    assert [point.values["scaling.k"] for point in listed.points] == sorted(
        trial.k for trial in trials if trial.value is not None
    )
    assert listed.grid["scaling.k"] == BOUNDS


def test_the_trials_are_rebuilt_from_their_folders(whole, tmp_path):
    folder, trials, _ = whole
    copy = shutil.copytree(folder, tmp_path / "copy")
    again, executor = run(copy, 12)
    assert not executor.started
    assert [(trial.k, trial.state, trial.value) for trial in again] == [(t.k, t.state, t.value) for t in trials]


def test_without_pruning_all_are_trained_to_the_end(tmp_path):
    trials, executor = run(tmp_path, 7, prune=False)
    assert not executor.cancelled
    assert all(trial.value == quality(trial.k) for trial in trials)


def test_interrupted_it_samples_the_same_values(whole, tmp_path):
    *_, uninterrupted = whole
    ks = []
    for after in (2, 5, None):
        stop = Stop()
        executor = Scripted(stop=stop, stop_after=after)
        if after is None:
            run(tmp_path, 12, executor)
        else:
            with pytest.raises(InterruptedTraining):
                run(tmp_path, 12, executor, stop)
        ks += executor.ks[1:] if ks and executor.ks[0] == ks[-1] else executor.ks
    assert ks == uninterrupted.ks


def test_an_interrupted_trial_resumes_in_its_folder(tmp_path):
    first = interrupted(tmp_path)
    trials, second = run(tmp_path, 3)
    assert second.started[0] == first.started[1]
    assert len(second.started) == 2
    assert [trial.state for trial in trials] == ["finished"] * 3


def test_a_process_that_is_still_saving_is_waited_for(tmp_path):
    """New trials would be chosen without what the interrupted one finds."""
    first, heard = interrupted(tmp_path), console()
    lock = locked(first.started[1])
    lock.__enter__()
    jobs = jobs_in(tmp_path, heard=heard)
    assert [jobs.next() for _ in range(3)] == [None] * 3
    assert heard.file.getvalue().count("Waiting for the process") == 1
    threading.Timer(1.0, lock.__exit__, (None, None, None)).start()
    _, second = run(tmp_path, 3)
    assert second.started[0] == first.started[1]


def test_a_trial_that_finished_while_nobody_looked_counts(tmp_path):
    first = interrupted(tmp_path, after=1)
    write_result(first.started[0], 0.5)
    trials, second = run(tmp_path, 2)
    assert len(second.started) == 1
    assert trials[0].value == 0.5


def test_more_trials_extend_it_and_fewer_change_nothing(tmp_path):
    run(tmp_path, 2)
    _, executor = run(tmp_path, 4)
    assert len(executor.started) == 2
    trials, executor = run(tmp_path, 2)
    assert (len(trials), executor.started) == (4, [])


def test_a_training_that_diverges_is_no_obstacle(tmp_path):
    trials, _ = run(tmp_path, 3, Scripted(codes={1: 3}))
    assert [trial.state for trial in trials] == ["finished", "diverged", "finished"]
    assert len(read_study(tmp_path).searches[0].points) == 2
    again, executor = run(tmp_path, 3)
    assert ([trial.state for trial in again], executor.started) == (["finished", "diverged", "finished"], [])


def test_any_other_failure_ends_it_and_is_tried_again(tmp_path):
    with pytest.raises(FailedRunsError, match="it broke"):
        run(tmp_path, 3, Scripted(codes={1: 1}))
    trials, executor = run(tmp_path, 3)
    assert len(executor.started) == 2
    assert all(trial.value is not None for trial in trials)


def test_a_damaged_result_of_a_trial_is_named(tmp_path):
    first = interrupted(tmp_path)
    (first.started[1] / "result.json").write_text("{")
    with pytest.raises(DamagedFileError, match=rf"{first.started[1]}/result\.json .* delete result\.json to finish"):
        run(tmp_path, 3)
    (first.started[1] / "result.json").unlink()
    (first.started[1] / "config.json").write_text("{")
    with pytest.raises((DamagedFileError, ConfigError), match=rf"{first.started[1]}/config\.json"):
        run(tmp_path, 3)


def test_a_result_of_another_trial_is_refused(tmp_path):
    """As if the result of one folder had been copied over another one."""
    first = interrupted(tmp_path)
    shutil.copy(first.started[0] / "result.json", first.started[1])
    values = json.loads((first.started[1] / "result.json").read_text())
    (first.started[1] / "result.json").write_text(json.dumps({**values, "seed": 7}))
    with pytest.raises(OtherConfigError, match=rf"{first.started[1]}: result\.json is that of another run"):
        run(tmp_path, 3)


def test_a_folder_of_another_search_is_left_alone(tmp_path):
    run(tmp_path, 2)
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(OtherConfigError, match=r"--k: '1 20' there, '1 9' now"):
        jobs_in(tmp_path, bounds=(1.0, 9.0))
    with pytest.raises(OtherConfigError, match=r"--batch-size: 32 there, 16 now"):
        jobs_in(tmp_path, config=replace(CONFIG, data=replace(CONFIG.data, batch_size=16)))
    assert (tmp_path / "study.json").read_bytes() == before
    jobs_in(tmp_path, config=replace(CONFIG, tensorboard=True))  # which changes no result


def test_a_k_outside_of_the_bounds_is_not_searched(tmp_path):
    _, executor = run(tmp_path, 3, bounds=(6.0, 20.0))
    assert all(6 <= k <= 20 for k in executor.ks)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # 5.5 is too close to the reference to be told from it, and 2.0 to 2.1.
        ({2.0: 0.70, 2.1: 0.71, 5.0: 0.60, 5.5: 0.90, 9.0: 0.65, 15.0: 0.66, 20.0: 0.1}, [2.1, 15.0, 9.0]),
        ({5.0: 0.5, 5.1: 0.4, 5.2: 0.6}, [5.2]),  # in a narrow range the best one
        ({5.0: 0.5}, []),
        ({20.0: 0.5, 1.0: 0.5, 3.0: 0.5}, [1.0, 3.0, 20.0]),  # equal values have an order
    ],
)
def test_the_best_values_that_differ_are_trained_again(values, expected):
    assert finalists(values, 5.0) == expected


@pytest.mark.parametrize("bounds", [(20.0, 1.0), (3.0, 3.0), (0.0, 5.0), (-1.0, 5.0), (1.0, float("inf"))])
def test_a_range_that_cannot_be_searched(bounds):
    with pytest.raises(ConfigError, match=r"--k must be two positive numbers, the smaller one first"):
        check_bounds(bounds)


def test_a_training_that_cannot_choose():
    check_config(CONFIG)
    with pytest.raises(ConfigError, match=r"--data\.validation must be above 0"):
        check_config(tiny_config("sgs"))
    with pytest.raises(ConfigError, match=rf"--epochs must be greater than --scaling\.warmup {EPOCHS}, got {EPOCHS}"):
        check_config(with_values(CONFIG, {"scaling.warmup": EPOCHS}))


def test_the_reference_is_the_k_of_the_config():
    arms = tune_study(with_k(CONFIG, 4.0), [9.0, 2.5]).arms("own")
    assert [arm.label for arm in arms] == ["k = 2.5", "k = 4", "k = 9"]
    assert [arm.reference for arm in arms] == [False, True, False]
    assert [arm.config.scaling.k for arm in arms] == [2.5, 4.0, 9.0]


def test_the_runs_that_decide_are_not_those_of_the_search(tmp_path):
    plan = make_plan(tune_study(CONFIG, [9.0]), "own", tmp_path, num_seeds=2, first_seed=1)
    assert {job.config.seed for job in plan.jobs} == {1, 2}
    assert ks_of(plan.record) == [5.0, 9.0]


def test_three_digits():
    assert rounded(3.28475) == 3.28
    assert rounded(12.3456) == 12.3
