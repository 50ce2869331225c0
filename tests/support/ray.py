"""Commands on a Ray cluster that the tests start."""

import secrets
import subprocess
import sys
from pathlib import Path

from support.common import python_environment
from support.training import wait_for

# In a process of its own: Ray changes what a process does at signals and at its end.
COMMAND = """
import sys
from support.studies import run_command
sys.exit(run_command({"epochs": int(sys.argv[1]), "failing": True}, *sys.argv[2:]))
"""

TOKEN = secrets.token_hex(32)
"""Of the clusters that these tests start, and of those who may use them."""


def environment():
    return {
        **python_environment(),
        **{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
        "RAY_worker_niceness": "0",  # other tests run beside this one
    }


def trainer_in(run):
    """The process that trains in a run's folder."""
    return int((run / "run.lock").read_text().split()[1])


def parent(process):
    """The parent of a process: Ray's worker, if it trains in one process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_while_running(process, condition, timeout=300):
    wait_for(lambda: condition() or process.poll() is not None, timeout)
    assert process.poll() is None, process.communicate()


def start(cluster, folder, *more, epochs=12):
    arguments = ["study", "run", "tiny", "--scale", "pocket", "--out", folder, "--launcher", "ray", "--threads", "1"]
    command = [sys.executable, "-c", COMMAND, str(epochs), *map(str, [*arguments, "--ray-address", cluster, *more])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
