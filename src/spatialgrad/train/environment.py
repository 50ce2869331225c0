"""The environment of a run: versions, commit, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("spatialgrad", "torch", "numpy", "lightning-fabric", "numba")


def describe_environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Everything that may affect a result or its speed, as JSON values."""
    return {
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "commit": _commit(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
        "processes": world_size,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _version(package: str) -> str | None:
    if package == "spatialgrad":
        # Of the code that runs, which need not be installed; importing the package here would be a cycle.
        return str(sys.modules[package].__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, marked if files were changed since; None if the package is installed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # in someone else's repository
        return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not available on every system
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
