"""What every command line shares: names, help, exit codes, Ctrl-C, narrow terminals, versions."""

import io
import logging
import platform
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest
from rich.console import Console

from spatialgrad import __version__
from spatialgrad.cli import terminal
from spatialgrad.cli.main import COMMANDS, OVERVIEW, SPINS, _quiet_interrupts, _warnings_once
from spatialgrad.cli.study import describe_status, describe_study
from spatialgrad.cli.terminal import Rows, program
from spatialgrad.studies.archive import open_study
from spatialgrad.studies.registry import get_study
from support.common import python_environment
from support.report import arm, record, write_run

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
GROUPS = [["study"], ["data"], ["model"]]
HELPS = [[], *([name] for name in COMMANDS), ["study", "run"], ["data", "get"], ["model", "show"]]


def run_python(*arguments, **variables):
    environment = {key: value for key, value in python_environment().items() if key not in WAITING} | variables
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment)


class TestOverview:
    """The first thing that a new user sees."""

    @pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]], ids=str)
    def test_six_commands_with_an_example_each(self, arguments, command):
        code, said = command(*arguments)
        assert code == 0
        first, further = said.split("Further commands:")
        assert re.findall(r"^  (\w+) ", first, re.MULTILINE) == [
            "demo",
            "compare",
            "train",
            "report",
            "export",
            "study",
        ]
        assert [line.split()[1] for line in first.splitlines() if line.startswith("      ")] == list(COMMANDS)[:6]
        assert re.findall(r"^  (\w+) ", further, re.MULTILINE) == list(COMMANDS)[6:]

    def test_examples_name_things_that_exist(self, command):
        """Every example is parsed: nothing is unknown but the folders."""
        for line in re.findall(r"^ +\{program\} (.*)$", OVERVIEW, re.MULTILINE):
            name, *rest = line.split()
            code, said = command(name, *rest, "--help")
            assert code == 0, said

    def test_a_group_lists_its_subcommands(self, command):
        code, said = command("study")
        assert code == 0
        assert "Show the progress of a study, and why runs failed." in said
        assert command("study", "--help") == (code, said)

    def test_python_m_spatialgrad(self):
        done = run_python("-m", "spatialgrad")
        assert done.returncode == 0, done.stderr
        assert "-m spatialgrad demo" in done.stdout

    def test_the_program_is_named_as_it_was_started(self, tmp_path, monkeypatch):
        """From a checkout, the command is often not in the path."""
        script = tmp_path / ".venv/bin/spatialgrad"
        script.parent.mkdir(parents=True)
        script.touch()
        script.chmod(0o755)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(script)])
        monkeypatch.setenv("PATH", "/nowhere")
        assert program() == ".venv/bin/spatialgrad"
        monkeypatch.setenv("PATH", str(script.parent))
        assert program() == "spatialgrad"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["dmeo"], "did you mean 'demo'?"),
        (["raport", "cifar"], "did you mean 'report'?"),
        (["study", "stauts", "cifar"], "did you mean 'status'?"),
        (["data", "lst"], "did you mean 'list'?"),
        (["xyz"], "choose from (demo, compare, train"),
    ],
)
def test_mistyped_commands(command, arguments, suggestion):
    code, said = command(*arguments)
    assert code == 2
    assert suggestion in said
    assert "--help" in said


class TestHelp:
    """It needs nothing that is slow to import, and fits."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--help"],
            ["study", "list"],
            ["train", "--model", "vgg99"],
            *(pytest.param([*names, "--help"], marks=pytest.mark.slow) for names in HELPS[1:]),
            *(
                pytest.param(names.split(), marks=pytest.mark.slow)
                for names in ("study show cifar", "model list", "study run cifra", "train --dataset cifar99")
            ),
        ],
        ids=" ".join,
    )
    def test_it_takes_less_than_a_second(self, arguments):
        code = (
            "import sys, time; from spatialgrad.cli.main import main\n"
            f"try: main({arguments!r})\n"
            "except SystemExit: pass\n"
            "heavy = 'torch numpy scipy matplotlib jinja2 lightning_fabric optuna ray timm torchvision'.split()\n"
            "print([name for name in heavy if name in sys.modules])\n"
            "print(time.process_time())"
        )
        seconds = []
        # On a shared machine the same work can take twice the time for a moment: the best of three counts.
        while not seconds or (min(seconds) >= 1 and len(seconds) < 3):
            done = run_python("-c", code)
            imported, used = done.stdout.splitlines()[-2:]
            assert imported == "[]", done.stderr
            seconds.append(float(used))
        assert min(seconds) < 1

    @pytest.mark.parametrize("arguments", [each for each in HELPS[1:] if each not in GROUPS], ids=" ".join)
    def test_forty_columns(self, arguments, command, monkeypatch):
        monkeypatch.setenv("COLUMNS", "40")
        code, said = command(*arguments, "--help")
        assert code == 0
        # The usage and the summary are single lines, which the terminal wraps; all else is laid out.
        laid_out = [line for line in said.splitlines() if line.startswith((" ", "│", "╭", "╰"))]
        assert len(laid_out) > 3
        assert max(map(len, laid_out)) <= 40

    def test_sentences_do_not_break_where_the_source_does(self, command, monkeypatch):
        monkeypatch.setenv("COLUMNS", "400")
        for arguments in (["compare"], ["study", "run"]):
            _, said = command(*arguments, "--help")
            assert re.search(r"Archive each run in this folder as soon as .* are not trained again\.", said)

    @pytest.mark.parametrize(("name", "lines"), [("train", 92), ("compare", 105), ("tune", 105)])
    def test_two_screens(self, name, lines, command, monkeypatch):
        monkeypatch.setenv("COLUMNS", "100")
        code, said = command(name, "--help")
        assert code == 0
        assert len(said.splitlines()) <= lines
        assert "--help-all shows all of them" in said
        assert "--scaling.bins" not in said
        code, said = command(name, "--help-all")
        assert code == 0
        assert "--scaling.bins" in said


class TestNarrowTables:
    """Nothing is cut on a narrow terminal."""

    @pytest.fixture(params=[40, 79, 100, 320])
    def narrow(self, request):
        return Console(file=io.StringIO(), width=request.param)

    def test_show(self, narrow):
        narrow.print(describe_study(get_study("cifar"), "paper"))
        said = narrow.file.getvalue()
        assert max(map(len, said.splitlines())) <= narrow.width
        assert "…" not in said
        assert "94.97±0.06,9.4GPUhours" in re.sub(r"\s", "", said) or narrow.width == 100

    def test_status(self, narrow, tmp_path):
        arms = [
            arm(f"a{number}", f"An arm with a long name {number}", {"Dataset": "x" * 99}, (0,)) for number in (1, 2)
        ]
        write_run(tmp_path / "runs/a1/seed0", 0.5)
        record(arms, seeds=(0,)).write(tmp_path)
        narrow.print(describe_status(open_study(tmp_path)))
        said = narrow.file.getvalue()
        assert "…" not in said
        assert said.count("x") >= 99
        assert max(map(len, said.splitlines())) <= narrow.width
        assert "1finished" in re.sub(r"\s", "", said)
        # Columns of a few letters each could not be read: a narrow terminal gets one line per value.
        assert ("arm: An arm with a long name 1\n" in said) == (narrow.width < 80)

    def test_files_and_pipes_get_wide_ones(self, capsys):
        terminal.terminal().print(Rows(("a", "b"), [("x" * 100, "y" * 100)]))
        assert f"{'x' * 100}  {'y' * 100}" in capsys.readouterr().out


class TestExitCodes:
    """2: wrong command line; 66: missing data; the same for every command."""

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("train --dataset cifar1000", "did you mean 'cifar100'?"),
            ("train --model vgg12", "unknown model 'vgg12'"),
            ("train --no-such-flag", "--no-such-flag"),
            ("train --config nothing.toml", "cannot read the config file nothing.toml"),
            ("data get cifar1000", "did you mean 'cifar100'?"),
            ("study run cifer", "did you mean 'cifar'?"),
            ("study run table1", "unknown study 'table1'; Table 1 of the paper is the study 'cifar'"),
            ("study run cifar", "--scale is missing; choose one:\n  paper: 40 runs"),
            ("study show cifer", "did you mean 'cifar'?"),
            ("study status cifer", "did you mean 'cifar'?"),
            ("study archive cifer", "did you mean 'cifar'?"),
            ("model show vgg12", "unknown model 'vgg12'"),
            ("compare --model vgg12", "unknown model 'vgg12'"),
            ("compare --dataset cifar1000", "did you mean 'cifar100'?"),
            ("tune --model vgg12", "unknown model 'vgg12'"),
            ("tune --recipe imagnet", "did you mean 'imagenet'?"),
            ("report cifer", "did you mean 'cifar'?"),
            ("report", "study"),
            ("resume nothing", "not a run's folder"),
            ("export nothing", "nothing"),
        ],
    )
    def test_a_wrong_command_line(self, line, says, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, said = command(*line.split())
        assert code == 2
        assert says in said
        assert "Traceback" not in said
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("start", ["train", "compare", "tune", "data get", "study run cifar --scale desk"])
    def test_missing_data(self, start, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        named = {"data get": ("folder:not/there", "mpii")}.get(start, ("folder:not/there", "cifar100"))
        for dataset in named if "study" not in start else ("",):
            flag = ["--dataset"] if start in ("train", "compare", "tune") else []
            code, said = command(*start.split(), *flag, *([dataset] if dataset else []), "--data.root", tmp_path / "no")
            assert code == 66
            ways_out = {"folder:not/there": "the PATH of --dataset folder:not/there", "mpii": "Manual download"}
            assert ways_out.get(dataset, "spatialgrad data get cifar10") in said
            assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cifar", "cifar has not been run here (studies/ contains optimizers-desk); run it: "
         "spatialgrad study run cifar --scale pocket"),
        ("cifar-desk", "spatialgrad study run cifar --scale desk"),
        ("optimizer-desk", "did you mean 'optimizers-desk'?"),
    ],
)  # fmt: skip
def test_a_report_before_a_run_says_what_to_run(name, says, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record([arm("a", "A", {}, (0,))]).write(tmp_path / "studies/optimizers-desk")
    for arguments in (["report", name], ["study", "status", name]):
        code, said = command(*arguments)
        assert code == 2
        assert says in said


def test_the_version_is_printed_without_importing_torch():
    code = (
        "import sys; from spatialgrad.cli.main import main\n"
        "code = main(['--version'])\n"
        "print(code, sorted({'torch', 'numpy', 'tyro'} & set(sys.modules)))"
    )
    said, rest = run_python("-c", code).stdout.splitlines()
    assert rest == "0 []"
    assert said == f"spatialgrad {__version__} (torch {version('torch')}, Python {platform.python_version()})"


def test_without_the_extra_the_way_out_is_named():
    code = "import sys; sys.modules['tyro'] = None; from spatialgrad.cli.main import main; sys.exit(main(['demo']))"
    done = run_python("-c", code)
    assert done.returncode == 1
    assert re.search(r"needs tyro, of the extra \[train\]: .*pip install .*\[train\]'", done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's threads are those of libgomp on Linux only")
@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, SPINS),
        *(
            pytest.param(given, spins, marks=pytest.mark.slow)
            for given, spins in (
                ({"GOMP_SPINCOUNT": "77"}, "77"),
                ({"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
                ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000"),
            )
        ),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_user_decides(given, spins):
    done = run_python("-m", "spatialgrad", "model", "show", "vgg11", OMP_DISPLAY_ENV="VERBOSE", **given)
    assert done.returncode == 0, done.stderr
    # What the library itself says when PyTorch loads it.
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.2, 0.6, 1.2])
def test_ctrl_c_in_the_first_seconds_is_quiet(delay, tmp_path):
    command = [sys.executable, "-m", "spatialgrad", "demo", "--epochs", "50", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=python_environment(), cwd=tmp_path
    )
    # From the moment at which the interpreter has started; before that, the message is Python's own.
    deadline = time.monotonic() + 60
    while not _has_started(process.pid) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in error
    assert len(error.splitlines()) <= 1


def test_a_line_is_logged_once_per_command():
    """A command may read its data set several times; what is logged about it is shown once."""
    record = logging.LogRecord("spatialgrad.data", logging.WARNING, "", 0, "%d images are held out", (36,), None)
    for _ in range(2):
        with _warnings_once():
            assert [bool(logging.lastResort.filter(record)) for _ in range(3)] == [True, False, False]


def test_an_ignored_interrupt_stays_ignored():
    """As for a command that a script starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _quiet_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def _has_started(pid):
    """Whether a process has loaded the first package after the interpreter's own."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            return "site-packages" in file.read()
    except OSError:
        return True
