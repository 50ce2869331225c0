"""Our own errors are a line, all others keep their traceback."""

import signal

import pytest

from spatialgrad.data import MissingDataError
from spatialgrad.train import ConfigError, InterruptedTraining
from spatialgrad.train.errors import exit_code_of


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("--epochs must be at least 1"), 2, "spatialgrad: --epochs must be at least 1"),
        (MissingDataError("no images"), 66, "spatialgrad: no images"),
        (InterruptedTraining(signal.SIGTERM, "stopped"), 143, "spatialgrad: stopped"),
        (KeyboardInterrupt(), 130, "spatialgrad: interrupted"),
        (ModuleNotFoundError("gone", name="lightning_fabric.utilities"), 1, "[train]'"),
        (ValueError("shape mismatch in my code"), 1, "Traceback"),
        (OSError("my file"), 1, "Traceback"),
        (ModuleNotFoundError("No module named 'mine'", name="mine"), 1, "Traceback"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes(error, code, line, capsys):
    def fail():
        raise error

    assert exit_code_of(fail) == code
    said = capsys.readouterr().err
    assert line in said
    assert ("Traceback" in said) == (line == "Traceback")
    if line == "Traceback":
        assert "in fail" in said
        assert str(error) in said


def test_success():
    assert exit_code_of(lambda: 3) == 0
