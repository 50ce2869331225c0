"""Mutation run: puts plausible bugs into a copy of the source, one at a time, and counts those that the tests notice.

Run it with `make mutants`, or a part of it with words of the names or files: `python benchmarks/mutants.py dyrep`.
It takes about half an hour. It fails if a bug no longer fits the source, or if fewer than 95 % are noticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/spatialgrad")
PARTS = ("src", "tests", "benchmarks", "pyproject.toml")
"""What the tests need."""
GOAL = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="run only bugs with one of these words in their name or file")
    words = parser.parse_args().words
    chosen = [each for each in MUTATIONS if not words or any(word in f"{each.name} {each.file}" for word in words)]
    stale = [problem for each in MUTATIONS if (problem := misfit(each, ROOT))]
    if stale or not chosen:
        print("\n".join(stale) or f"no bug matches {' '.join(words)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy_tree(Path(folder))
        everything = sorted({path for each in chosen for path in each.tests})
        if run_tests(Path(folder), everything) != 0:
            print("The tests fail without any bug: run them on their own first.")
            return 2
        survivors = [each for each in chosen if not is_caught(each, Path(folder))]
    share = 1 - len(survivors) / len(chosen)
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} caught: {share:.0%} (goal {GOAL:.0%})")
    for each in survivors:
        print(f"survived: {each.name} ({each.file}: {each.old!r} -> {each.new!r})")
    return int(share < GOAL)


def misfit(mutation: Mutation, root: Path) -> str | None:
    """Why a bug cannot be put in: its text is not there once, or its tests are gone."""
    path = root / SOURCE / mutation.file
    count = path.read_text().count(mutation.old) if path.exists() else 0
    if count != 1:
        return f"{mutation.file}: {mutation.old!r} ({mutation.name}) occurs {count} times instead of once"
    missing = [path for path in mutation.tests if not (root / "tests" / path).exists()]
    return f"{mutation.name}: no such tests: {', '.join(missing)}" if missing else None


def copy_tree(folder: Path) -> None:
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)


def is_caught(mutation: Mutation, folder: Path) -> bool:
    """Put a bug in, run its tests, and take it out again."""
    path = folder / SOURCE / mutation.file
    original, start = path.read_text(), time.monotonic()
    path.write_text(original.replace(mutation.old, mutation.new))
    try:
        code = run_tests(folder, mutation.tests)
    finally:
        path.write_text(original)
    if code not in (0, 1, 2):  # 2: the tests cannot even be imported
        raise RuntimeError(f"pytest ended with exit code {code} for {mutation.name!r}")
    print(f"{'caught  ' if code else 'SURVIVED'} {time.monotonic() - start:5.0f} s  {mutation.name}", flush=True)
    return code != 0


def run_tests(folder: Path, tests: Sequence[str]) -> int:
    """Run tests of a copy up to the first failure, and return pytest's exit code; its time limit ends what hangs."""
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{path}" for path in tests)]
    # Bytecode is told apart by size and second, which two bugs in one file may have in common.
    variables = {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env={**os.environ, **variables}, stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
