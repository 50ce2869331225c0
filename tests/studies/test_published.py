"""Every published number of the package is the one that the paper prints, and none is missing."""

import pytest

from spatialgrad.studies.paper.figure8_k_search import K
from spatialgrad.studies.paper.table1_cifar import QUOTED
from spatialgrad.studies.paper.table3_search_methods import AUTOCORRELATION_K, RATIOS
from spatialgrad.studies.registry import STUDIES, get_study
from spatialgrad.studies.scales import VALIDATION
from support.paper_tables import in_paper, numbers, shipped

TABLES = {
    "1": "cifar",
    "2": "imagenet",
    "3": "search-methods",
    "4": "architectures",
    "5": "optimizers",
    "6": "sensitivity",
    "7": "segmentation",
    "8": "pose",
}
SIZES = {"1": 48, "2": 60, "3": 8, "4": 34, "5": 36, "6": 36, "7": 6, "8": 6}
"""How many cells each table has."""


def lowered(*words):
    return tuple(word.lower() for word in words)


def printed(table):
    """The shipped numbers of a table by row and column, but for numbers of runs and searched values."""
    return {
        lowered(each.row, each.column): numbers(each.value)
        for each in shipped()
        if each.table == table and each.column not in ("runs", "alpha and beta", "k")
    }


def in_package(table):
    """The same from the study."""
    found = {}
    for arm in get_study(TABLES[table]).arms("paper"):
        for value in arm.published:
            assert value.source in ("paper", QUOTED)
            star = "" if value.source == "paper" else "*"
            accuracy = (value.mean, *value.other.values(), *(() if value.std is None else (value.std,)))
            if table in "123":
                row = " · ".join([*arm.group.values(), f"{arm.label}{star}"])
                sizes = {"macs": (value.macs, 1e6 if table == "1" else 1e9), "parameters": (value.parameters, 1e6)}
                cells = {"cost": (value.cost,), "accuracy": accuracy}
                cells |= {name: (size / unit,) for name, (size, unit) in sizes.items() if size is not None}
            else:
                row, cells = " · ".join(arm.group.values()), {arm.label: accuracy}
            for column, cell in cells.items():
                assert lowered(row, column) not in found
                found[lowered(row, column)] = cell
    return found


@pytest.mark.parametrize("table", TABLES)
def test_published_values(table):
    expected = printed(table)
    assert len(expected) == SIZES[table]
    assert in_package(table) == expected


def test_no_table_is_missing():
    with_values = {name for name in STUDIES if any(arm.published for arm in get_study(name).arms("paper"))}
    assert with_values == set(TABLES.values())


def test_numbers_of_runs():
    runs = {TABLES[each.table]: int(each.value) for each in shipped() if each.column == "runs"}
    assert set(runs) == {"cifar", "imagenet", "architectures", "optimizers", "sensitivity"}
    for name in TABLES.values():
        study = get_study(name)
        assert study.published_seeds == runs.get(name)
        assert study.num_seeds["paper"] == runs.get(name, study.num_seeds["paper"])


def test_search_spaces():
    grids = {(each.table, each.column): numbers(each.value) for each in shipped()}
    assert grids["3", "alpha and beta"] == RATIOS
    assert grids["3", "k"] == AUTOCORRELATION_K
    assert grids["Figure 8", "k"] == K
    assert VALIDATION == 0.2


def test_the_shipped_numbers_are_those_of_the_paper():
    assert sorted(shipped()) == sorted(in_paper())


@pytest.mark.parametrize("scale", ["desk", "pocket"])
@pytest.mark.parametrize("name", STUDIES)
def test_smaller_scales_show_nothing_else(name, scale):
    whole = {value for arm in get_study(name).arms("paper") for value in map(str, arm.published)}
    assert {value for arm in get_study(name).arms(scale) for value in map(str, arm.published)} <= whole
