"""A search over k in Optuna's journal: sampled, pruned, interrupted, resumed and rebuilt.

The launcher here writes what a training would write, at once; real trainings are in `tests/cli/test_tune.py`.
"""

import json
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from spatialgrad.studies.errors import FailedRunsError
from spatialgrad.studies.record import read_study
from spatialgrad.studies.run.journal import DAMAGED, JOURNAL
from spatialgrad.studies.run.launch import Ended
from spatialgrad.studies.run.trials import RANDOM_TRIALS
from spatialgrad.studies.run.tuning import Tuning
from spatialgrad.train import DamagedFileError, InterruptedTraining, OtherConfigError, Run
from spatialgrad.train.locks import locked
from spatialgrad.train.signals import Stop
from support.studies import tiny_config

EPOCHS = 6
BOUNDS = (1.0, 20.0)
CONFIG = tiny_config("sgs", epochs=EPOCHS, data={"validation": 0.2, "limit": 120})


def quality(k):
    """The best k is 3; far from it, a training is hopeless from the beginning."""
    return 0.9 - 0.01 * abs(k - 3)


class Scripted:
    """Trains one epoch per look, as a process would, and stops when it is cancelled.

    Args:
        codes: Exit codes of trainings that fail, by the number of their start.
        epochs_at_once: Number of epochs that are written between two looks.
        stop: Receives a signal once so many trainings were started.
    """

    def __init__(self, codes=None, epochs_at_once=1, stop=None, stop_after=None):
        self.codes, self.epochs_at_once = codes or {}, epochs_at_once
        self.stop_signal, self.stop_after = stop, stop_after
        self.started, self.cancelled, self.ks = [], [], []
        self._now = {}

    has_room = property(lambda self: not self._now)
    running = property(lambda self: len(self._now))

    def start(self, folder, *, processes):
        self.started.append(folder)
        self.ks.append(Run.open(folder).config.scaling.k)
        if self.stop_signal is not None and len(self.started) == self.stop_after:
            self.stop_signal.signal = signal.SIGINT
        lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        self._now[folder] = len(lines)

    def cancel(self, folder):
        if folder in self._now:
            self.cancelled.append(folder)

    def ended(self, timeout):
        for folder, epoch in list(self._now.items()):
            if folder in self.cancelled:
                del self._now[folder]
                return [Ended(folder=folder, exit_code=143)]
            if (code := self.codes.get(len(self.started) - 1)) is not None:
                del self._now[folder]
                return [Ended(folder=folder, exit_code=code, message="it broke")]
            if epoch == EPOCHS:
                k = Run.open(folder).config.scaling.k
                result = {"metric": "accuracy", "value": quality(k), "seconds": 1.0}
                (folder / "result.json").write_text(json.dumps(result))
                del self._now[folder]
                return [Ended(folder=folder, exit_code=0)]
            for each in range(epoch, min(EPOCHS, epoch + self.epochs_at_once)):
                write_epoch(folder, each)
                self._now[folder] = each + 1
        return []

    def stop(self):
        self._now.clear()

    close = stop


def write_epoch(folder, epoch):
    value = quality(Run.open(folder).config.scaling.k) * (epoch + 1) / EPOCHS
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"epoch": epoch, "test_accuracy": value}) + "\n")


def tuning(folder, config=CONFIG, bounds=BOUNDS, said=None, **options):
    report = [].append if said is None else said.append
    return Tuning(folder, config, bounds, report=report, **options)


def run(folder, num_trials, launcher=None, stop=None, **options):
    """Search, and return the search and the launcher."""
    launcher = launcher or Scripted()
    search = tuning(folder, **options)
    search.run(launcher, num_trials, stop or Stop())
    return search, launcher


def trials(folder):
    """What any program that knows Optuna reads, such as its dashboard."""
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return optuna.load_study(study_name="k", storage=storage).trials


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Twelve trials in one go."""
    folder = tmp_path_factory.mktemp("whole")
    search, launcher = run(folder, 12)
    return folder, search, launcher


def test_the_own_k_comes_first_and_the_rest_lies_between_the_bounds(whole):
    _, search, launcher = whole
    assert launcher.ks[0] == 5.0
    assert len(launcher.ks) == len(search.trials) == 12
    assert all(1 <= k <= 20 for k in launcher.ks)
    # Sampled on a logarithmic scale, and towards the best.
    assert sum(k < 4.5 for k in launcher.ks) >= 4


def test_hopeless_trainings_are_stopped_early(whole):
    folder, search, launcher = whole
    found = trials(folder)
    pruned = [trial for trial in found if trial.state is TrialState.PRUNED]
    assert len(pruned) == len(launcher.cancelled) > 0
    patience = EPOCHS // 3
    for trial in pruned:
        assert trial.number >= RANDOM_TRIALS
        assert patience < len(trial.intermediate_values) < EPOCHS
        assert not (folder / trial.user_attrs["run"] / "result.json").exists()
    complete = [trial.params["scaling.k"] for trial in found if trial.state is TrialState.COMPLETE]
    assert min(abs(k - 3) for k in complete) <= min(abs(trial.params["scaling.k"] - 3) for trial in pruned)
    assert sum(each.value is None for each in search.trials) == len(pruned)


def test_the_record_lists_the_trials_that_count(whole):
    folder, search, _ = whole
    (listed,) = read_study(folder).searches
    assert [point.values["scaling.k"] for point in listed.points] == sorted(
        each.k for each in search.trials if each.value is not None
    )
    assert listed.bounds == BOUNDS


def test_without_pruning_all_are_trained_to_the_end(tmp_path):
    search, launcher = run(tmp_path, 8, prune=False)
    assert not launcher.cancelled
    assert all(each.value is not None for each in search.trials)


def test_interrupted_it_samples_the_same_values(whole, tmp_path):
    *_, uninterrupted = whole
    ks = []
    for after in (2, 5, None):
        stop = Stop()
        launcher = Scripted(stop=stop, stop_after=after)
        if after is None:
            run(tmp_path, 12, launcher)
        else:
            with pytest.raises(InterruptedTraining, match="trials finished"):
                run(tmp_path, 12, launcher, stop)
        ks += launcher.ks[1:] if ks and launcher.ks[0] == ks[-1] else launcher.ks
    assert ks == uninterrupted.ks


def test_an_interrupted_trial_resumes_in_its_folder(tmp_path):
    stop = Stop()
    first = Scripted(stop=stop, stop_after=2)
    with pytest.raises(InterruptedTraining):
        run(tmp_path, 3, first, stop)
    write_epoch(first.started[1], 1)  # after the last look
    search, second = run(tmp_path, 3)
    assert second.started[0] == first.started[1]
    assert len(second.started) == 2
    assert [trial.state for trial in trials(tmp_path)] == [TrialState.COMPLETE] * 3
    assert [len(trial.intermediate_values) for trial in trials(tmp_path)] == [EPOCHS] * 3
    assert len(search.trials) == 3


def test_a_process_that_is_still_saving_is_waited_for(tmp_path):
    """New trials would be chosen without what the interrupted one finds."""
    stop = Stop()
    first = Scripted(stop=stop, stop_after=2)
    with pytest.raises(InterruptedTraining):
        run(tmp_path, 3, first, stop)
    looks, said = [], []

    class Patient(Scripted):
        def ended(self, timeout):
            looks.append(len(self.started))
            if len(looks) == 3:
                held.close()
            return super().ended(timeout)

    with ExitStack() as held:
        held.enter_context(locked(first.started[1]))
        _, second = run(tmp_path, 3, Patient(), said=said)
    assert looks[:4] == [0, 0, 0, 1]
    assert second.started[0] == first.started[1]
    assert sum("Waiting for the process" in line for line in said) == 1


def test_a_trial_that_finished_while_nobody_looked_counts(tmp_path):
    stop = Stop()
    first = Scripted(stop=stop, stop_after=1)
    with pytest.raises(InterruptedTraining):
        run(tmp_path, 2, first, stop)
    for epoch in range(EPOCHS):
        write_epoch(first.started[0], epoch)
    (first.started[0] / "result.json").write_text('{"metric": "accuracy", "value": 0.5, "seconds": 1.0}')
    search, second = run(tmp_path, 2)
    assert len(second.started) == 1
    assert search.trials[0].value == 0.5


def test_more_trials_extend_it_and_fewer_change_nothing(tmp_path):
    run(tmp_path, 3)
    search, launcher = run(tmp_path, 5)
    assert len(launcher.started) == 2
    search, launcher = run(tmp_path, 2)
    assert not launcher.started
    assert len(search.trials) == 5


def test_a_training_that_diverges_is_no_obstacle(tmp_path):
    said = []
    search, _ = run(tmp_path, 3, Scripted(codes={1: 3}), said=said)
    assert [each.value is None for each in search.trials] == [False, True, False]
    assert trials(tmp_path)[1].state is TrialState.FAIL
    assert any("diverged" in line for line in said)
    assert len(read_study(tmp_path).searches[0].points) == 2


def test_any_other_failure_ends_it_and_is_tried_again(tmp_path):
    with pytest.raises(FailedRunsError, match="it broke"):
        run(tmp_path, 3, Scripted(codes={1: 1}))
    search, launcher = run(tmp_path, 3)
    assert len(launcher.started) == 2
    assert all(each.value is not None for each in search.trials)


def test_a_journal_that_is_damaged_or_gone_is_rebuilt(tmp_path):
    before, _ = run(tmp_path, 3)
    for spoil in (lambda path: path.write_text("{\n"), lambda path: path.unlink()):
        spoil(tmp_path / JOURNAL)
        after, launcher = run(tmp_path, 3)
        assert not launcher.started
        assert after.trials == before.trials
    assert (tmp_path / DAMAGED).exists()


def test_a_rebuilt_journal_resumes_what_had_not_finished(tmp_path):
    stop = Stop()
    first = Scripted(stop=stop, stop_after=2)
    with pytest.raises(InterruptedTraining):
        run(tmp_path, 3, first, stop)
    (tmp_path / JOURNAL).unlink()
    search, second = run(tmp_path, 3)
    assert second.started[0] == first.started[1]
    assert len(search.trials) == 3


@pytest.mark.parametrize(
    "line", ['{"test_accuracy": 0.5}', '{"epoch": [1], "test_accuracy": 0.5}', '{"epoch": 1, "test_accuracy": "x"}']
)
def test_absurd_lines_of_metrics_do_not_stop_it(tmp_path, line):
    class Absurd(Scripted):
        def start(self, folder, *, processes):
            (folder / "metrics.jsonl").write_text(f"{line}\n")
            super().start(folder, processes=processes)

    search, _ = run(tmp_path, 2, Absurd())
    assert all(each.value is not None for each in search.trials)


@pytest.mark.parametrize("content", ["{", "[]", '{"metric": 1}'])
def test_a_damaged_result_of_a_trial_is_named(tmp_path, content):
    stop = Stop()
    first = Scripted(stop=stop, stop_after=2)
    with pytest.raises(InterruptedTraining):
        run(tmp_path, 3, first, stop)
    (first.started[1] / "result.json").write_text(content)
    with pytest.raises(DamagedFileError, match=rf"{first.started[1]}: result\.json .* delete result\.json to finish"):
        run(tmp_path, 3)
    (first.started[1] / "result.json").unlink()
    search, second = run(tmp_path, 3)
    assert second.started[0] == first.started[1]
    assert all(each.value is not None for each in search.trials)


def test_a_result_of_another_trial_is_refused(tmp_path):
    """As if a folder had been copied over another one before the search had noted its result."""
    stop = Stop()
    first = Scripted(stop=stop, stop_after=2)
    with pytest.raises(InterruptedTraining):
        run(tmp_path, 3, first, stop)
    finished, interrupted = first.started
    shutil.rmtree(interrupted)
    shutil.copytree(finished, interrupted)
    with pytest.raises(OtherConfigError, match=rf"{interrupted}: config\.json is that .*--scaling\.k: 5\."):
        run(tmp_path, 3)
    shutil.rmtree(interrupted)
    search, second = run(tmp_path, 3)
    assert second.started[0] == interrupted
    assert [each.value for each in search.trials] == [quality(each.k) for each in search.trials]


def test_a_rebuilt_journal_without_a_damaged_trial(tmp_path):
    """The trial is named, its folder is left alone, and no other trial gets the result of a wrong k."""
    run(tmp_path, 3)
    (tmp_path / JOURNAL).unlink()
    damaged, said = tmp_path / "searches/k/trial-001/seed0", []
    (damaged / "config.json").write_text("{")
    before = (damaged / "result.json").read_bytes()
    search, launcher = run(tmp_path, 4, said=said)
    assert any(line.startswith(f"{damaged} is left out") and "config.json" in line for line in said)
    assert len(launcher.started) == 2
    assert len({each.folder for each in search.trials} | {damaged}) == 5
    assert [each.value for each in search.trials] == [quality(each.k) for each in search.trials]
    assert (damaged / "result.json").read_bytes() == before


def test_a_folder_of_another_search_is_left_alone(tmp_path):
    run(tmp_path, 2)
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(OtherConfigError, match=r"--k: '1 20' there, '1 9' now"):
        tuning(tmp_path, bounds=(1.0, 9.0))
    with pytest.raises(OtherConfigError, match=r"--batch-size: 32 there, 16 now"):
        tuning(tmp_path, replace(CONFIG, data=replace(CONFIG.data, batch_size=16)))
    assert (tmp_path / "study.json").read_bytes() == before


def test_a_k_outside_of_the_bounds_is_not_searched(tmp_path):
    _, launcher = run(tmp_path, 3, bounds=(6.0, 20.0))
    assert all(6 <= k <= 20 for k in launcher.ks)
