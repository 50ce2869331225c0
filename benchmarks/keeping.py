"""Keep what a benchmark measured, so that pages can quote it: one JSON file, one entry per benchmark."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def keep(path: Path, name: str, figures: Mapping[str, Any]) -> None:
    """Write figures into a file, under a name; other names in it stay.

    Args:
        path: The file.
        name: Of the measurement.
        figures: What was measured.
    """
    kept = json.loads(path.read_text()) if path.exists() else {}
    arguments = [each for each in sys.argv[1:] if each not in ("--keep", str(path))]
    script = Path(sys.argv[0]).name
    kept[name] = {
        "command": " ".join(["python", f"benchmarks/{script}", *arguments]),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "torch": torch.__version__},
        **{key: round(value, 6) if isinstance(value, float) else value for key, value in figures.items()},
    }
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n")


def processor() -> str:
    """The name of the processor if the system provides it."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()
