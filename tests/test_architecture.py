"""The import graph, drawn from the source: lazy imports and those for type checkers count like all others."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import spatialgrad

ROOT = Path(spatialgrad.__file__).parent
FLOORS = (
    "utils",
    "sgs",
    "integrations",
    "reparam",
    "models",
    "data",
    "train",
    "studies",
    "report",
    "cli",
)
"""The packages from bottom to top; each imports only from itself and from those before it."""
MAY_NOT_SEE = {"integrations": ("reparam",), "models": ("sgs", "reparam", "integrations"), "data": ("sgs", "reparam")}
"""Floors further down that a package has no business with all the same."""


def modules():
    """Every module's file by its dotted name."""
    files = sorted(ROOT.rglob("*.py"))
    return {".".join(("spatialgrad", *_parts(path))): path for path in files}


def _parts(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(path, known):
    """The modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            if node.module in known:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    found.add(name if name in known else node.module)
    return found


@pytest.fixture(scope="module")
def graph():
    known = modules()
    return {name: imports_of(path, known) - {name} for name, path in known.items()}


def floor_of(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOORS else None


def test_every_package_is_a_floor():
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(FLOORS)
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", "__main__", "plot", "reference"}


def test_no_cycles(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_nothing_is_imported_from_a_higher_floor(graph):
    wrong = []
    for name, targets in graph.items():
        mine = floor_of(name)
        for target in targets:
            theirs = floor_of(target)
            if mine is None or theirs is None or mine == theirs:
                continue
            if FLOORS.index(theirs) > FLOORS.index(mine) or theirs in MAY_NOT_SEE.get(mine, ()):
                wrong.append(f"{name} → {target}")
    assert not wrong, "\n".join(sorted(wrong))


def test_the_package_itself_shows_the_method_only(graph):
    shown = graph["spatialgrad"] - {"spatialgrad.utils.lazy", "spatialgrad.plot"}  # how, not what
    assert {floor_of(target) for target in shown} == {"sgs"}
    assert {floor_of(target) for target in graph["spatialgrad.__main__"]} == {"cli"}


def test_nothing_inside_imports_the_package_itself(graph):
    """`import spatialgrad.x` from within would tie every module to the public names."""
    inside = [name for name, targets in graph.items() if "spatialgrad" in targets]
    assert not inside
