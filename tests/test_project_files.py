"""What surrounds the code: CI, hooks and CONTRIBUTING name things that exist."""

import re
from pathlib import Path

import yaml

from test_architecture import FLOORS

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def read(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_ci_runs_the_make_targets_on_every_supported_python():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {command.split()[1] for command in commands if not command.startswith("make ${{")}
    targets |= set(jobs["torch"]["strategy"]["matrix"]["target"])
    assert targets == {"test", "test-slow", "oldest", "newest", "docs"}
    assert targets <= TARGETS
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_hooks_are_the_tools_of_make_lint():
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0]
    for hook in hooks:
        tool = " ".join(hook["entry"].removeprefix(".venv/bin/").split()[:2]).removesuffix(" --fix")
        assert f"$(VENV)/bin/{tool}" in recipe


def test_issue_templates_are_forms():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert path.name == "config.yml" or {"name", "description", "body"} <= set(form)


def test_contributing_is_short_and_shows_every_floor():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) < 50
    assert tuple(reversed(re.findall(r"^\| (?!floor )(\w+) \|", text, re.MULTILINE))) == FLOORS
    for file in re.findall(r"`([\w/]+\.py)` \|", text):
        assert (ROOT / "src" / "spatialgrad" / file).is_file(), file
    assert set(re.findall(r"^    make ([a-z-]+)", text, re.MULTILINE)) <= TARGETS


def test_oldest_versions_are_the_declared_ones():
    project = (ROOT / "pyproject.toml").read_text()
    for name, version in re.findall(r"(\w+)==([\d.]+)", MAKEFILE):
        declared = re.search(rf'"{name}>=([\d.]+)"', project)[1]
        assert version in (declared, f"{declared}.0")
