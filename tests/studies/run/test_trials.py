"""The trials of a search over k in Optuna's journal, without any training; whole searches are in `test_tuning.py`."""

import json
from dataclasses import replace

import pytest

from spatialgrad.studies.run.journal import JOURNAL, open_journal
from spatialgrad.studies.run.trials import RANDOM_TRIALS, Trials
from support.studies import tiny_config

EPOCHS = 6
CONFIG = tiny_config("sgs", epochs=EPOCHS, data={"validation": 0.2, "limit": 120})


def open_trials(folder, config=CONFIG, bounds=(1.0, 20.0), **options):
    options = {"metric": "accuracy", "prune": True, "report": print, **options}
    return Trials(folder, config, bounds, **options)


def write_metrics(trial, values, metric="accuracy"):
    trial.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"epoch": epoch, f"test_{metric}": value}) for epoch, value in enumerate(values)]
    (trial.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def complete_some(trials, value, number=RANDOM_TRIALS):
    for _ in range(number):
        trial = trials.ask()
        write_metrics(trial, [value] * EPOCHS)
        assert trials.follow(trial.number) is None
        trials.complete(trial.number, value)


def test_a_trial_runs_until_its_end_is_recorded(tmp_path):
    trials = open_trials(tmp_path)
    first, second, third = trials.ask(), trials.ask(), trials.ask()
    assert trials.running == trials.all == [first, second, third]
    assert trials.finished == []
    assert first.k == CONFIG.scaling.k
    trials.complete(first.number, 0.5)
    trials.fail(second.number)
    assert trials.finished == [replace(first, running=False, value=0.5), replace(second, running=False)]
    assert trials.running == [third] == [trials.get(third.number)]


def test_the_next_k_depends_on_the_journal_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one = open_trials(tmp_path / "one")
    ks = [one.ask().k for _ in range(RANDOM_TRIALS)]
    assert [open_trials(tmp_path / "many").ask().k for _ in range(RANDOM_TRIALS)] == ks
    assert len(set(ks)) == RANDOM_TRIALS


def test_a_trial_without_a_k_is_ignored(tmp_path):
    """Its command was killed between two lines of the journal."""
    trials = open_trials(tmp_path)
    _, study = open_journal(tmp_path, "k", print)
    study.ask()
    assert trials.all == []
    trial = trials.ask()
    assert trial.k == CONFIG.scaling.k
    assert trials.all == [trial]


@pytest.mark.parametrize(("prune", "metric"), [(True, "accuracy"), (False, "accuracy"), (True, "miou")])
def test_a_hopeless_trial_is_pruned_once_it_had_its_time(tmp_path, prune, metric):
    trials = open_trials(tmp_path, prune=prune)
    complete_some(trials, 0.9)
    trial = trials.ask()
    patience = EPOCHS // 3
    write_metrics(trial, [0.1] * patience)
    assert trials.follow(trial.number) is None
    write_metrics(trial, [0.1] * EPOCHS, metric)
    judged = prune and metric == "accuracy"  # another metric than that of the search says nothing
    assert trials.follow(trial.number) == ((patience, 0.1) if judged else None)
    assert trials.get(trial.number) == replace(trial, running=not judged, pruned=judged)
    assert trials.follow(trial.number) is None


def test_the_last_epoch_prunes_nothing(tmp_path):
    """The training is over by then: it has a result."""
    trials = open_trials(tmp_path)
    complete_some(trials, 0.9)
    trial = trials.ask()
    write_metrics(trial, [0.95] * (EPOCHS - 1) + [0.1])
    assert trials.follow(trial.number) is None
    assert trials.running == [trial]


def test_a_rebuilt_journal_keeps_the_folders(tmp_path):
    """The folder of the first trial is gone, so that the second one has another number now."""
    trials = open_trials(tmp_path)
    gone, kept = trials.ask(), trials.ask()
    kept.folder.mkdir(parents=True)
    config = {"scaling": {"k": kept.k}}
    (kept.folder / "config.json").write_text(json.dumps(config))
    (tmp_path / JOURNAL).unlink()
    trials = open_trials(tmp_path)
    (rebuilt,) = trials.all
    assert rebuilt == replace(kept, number=gone.number)
    trials.note_folder(rebuilt)
    assert open_trials(tmp_path).all == [rebuilt]


def test_the_folder_is_noted_for_programs_that_read_the_journal(tmp_path):
    trials = open_trials(tmp_path)
    trial = trials.ask()
    trials.note_folder(trial)
    _, study = open_journal(tmp_path, "k", print)
    assert tmp_path / study.trials[0].user_attrs["run"] == trial.folder
