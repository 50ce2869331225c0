"""How long an epoch takes, from a few steps."""

import pytest

from spatialgrad.train.estimate import estimate_epoch
from support.training import quietly, tiny


@pytest.mark.parametrize("method", ["baseline", "sgs", "dbb"])
def test_it_is_close_to_what_a_training_takes_and_leaves_nothing(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seconds = estimate_epoch(tiny(tmp_path / "run", method))
    assert not list(tmp_path.iterdir())
    result, _ = quietly(tiny(tmp_path / "run", method))
    # The machine may do something else meanwhile.
    assert result.seconds / 3 / 10 < seconds < 10 * result.seconds / 3
