"""The command line in this process."""

import pytest

from spatialgrad.cli.main import main


@pytest.fixture
def command(capsys):
    """Run a command line; its exit code and everything that it printed."""

    def run(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # the parser's own errors, and --help
            code = error.code
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture
def parsed(monkeypatch):
    """Parse a command line of `train`, and give the config instead of training."""
    found = []
    monkeypatch.setattr("spatialgrad.cli.train.run_training", found.append)

    def parse(*arguments):
        assert main(["train", *arguments]) == 0
        return found.pop()

    return parse
