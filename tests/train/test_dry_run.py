"""Whether a training can start, and how long an epoch takes: nothing is written."""

from contextlib import nullcontext

import pytest

from spatialgrad.train import ConfigError
from spatialgrad.train.dry_run import check_training, estimate_epoch
from support.training import quietly, tiny


@pytest.mark.parametrize("method", ["sgs", "dbb"])
def test_it_is_close_to_what_a_training_takes_and_leaves_nothing(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seconds = estimate_epoch(tiny(tmp_path / "run", method))
    assert not list(tmp_path.iterdir())
    result, _ = quietly(tiny(tmp_path / "run", method))
    # The machine may do something else meanwhile.
    assert result.seconds / 3 / 10 < seconds < 10 * result.seconds / 3


@pytest.mark.parametrize(
    ("groups", "processes", "message"),
    [
        ({}, 1, None),
        ({}, 2, None),
        ({"method": "repopt"}, 1, "needs the scales of a search"),
        ({"machine": {"accelerator": "mps"}}, 1, "--machine"),
        ({"data": {"batch_size": 31}}, 2, "--batch-size 31 must be a multiple of the number of processes, 2"),
    ],
)
def test_what_the_training_would_raise(groups, processes, message, tmp_path):
    config = tiny(tmp_path / "run", **groups)
    with nullcontext() if message is None else pytest.raises(ConfigError, match=message):
        check_training(config, processes=processes)
    assert not list(tmp_path.iterdir())
