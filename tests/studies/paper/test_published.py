"""Every published number of the package is the one in the paper's text, and none is missing."""

import pytest

from spatialgrad.studies.paper.table1_cifar import QUOTED
from spatialgrad.studies.paper.table3_search_methods import AUTOCORRELATION_K, RATIOS
from spatialgrad.studies.registry import STUDIES, get_study
from support.paper_tables import mean_and_std, plain, read_paper, table, tables


@pytest.fixture(scope="module")
def paper():
    return read_paper()


def published(name):
    """What the package says: (group..., label, whether quoted) -> Published."""
    found = {}
    for arm in get_study(name).arms("paper"):
        for value in arm.published:
            key = (*arm.group.values(), arm.label, value.source != "paper")
            assert key not in found
            assert value.source in ("paper", QUOTED)
            found[key] = value
    return found


def in_paper(rows):
    """Rows with a header of two lines and the columns group, label, cost, [macs, parameters,] accuracy."""
    found = {}
    for group, label, cost, *size, accuracy in rows[2:]:
        found[group, plain(label), "$^*$" in label] = (float(cost), *map(float, size), *mean_and_std(accuracy))
    return found


@pytest.mark.parametrize(
    ("name", "caption", "unit"),
    [("cifar", "Results for VGG-16 on CIFAR-10", 1e6), ("imagenet", "Results on ImageNet", 1e9)],
)
def test_main_tables(paper, name, caption, unit):
    expected = in_paper(table(paper, caption))
    assert len(expected) == {"cifar": 12, "imagenet": 15}[name]
    found = {
        key: (value.cost, value.macs / unit, value.parameters / 1e6, value.mean, value.std)
        for key, value in published(name).items()
    }
    assert found == expected


def test_search_methods(paper):
    rows = table(paper, "search methods")
    expected = in_paper([[cell for cell in row if cell] for row in rows])
    assert len(expected) == 4
    found = {key: (value.cost, value.mean, value.std) for key, value in published("search-methods").items()}
    assert found == expected


def columns(rows, num_keys):
    """Tables with one column per method: (group..., label) -> mean and deviation."""
    header, *body = rows
    return {
        (*map(plain, row[:num_keys]), plain(label)): mean_and_std(cell)
        for row in body
        for label, cell in zip(header[num_keys:], row[num_keys:], strict=True)
    }


@pytest.mark.parametrize(
    ("name", "caption", "num_keys", "number"),
    [
        ("architectures", "tab:CIFAR_extra", 1, 34),
        ("optimizers", "tab:adaoptimizers", 2, 36),
        ("sensitivity", "tab:hyperpref", 3, 36),
    ],
)
def test_appendix(paper, name, caption, num_keys, number):
    expected = columns(table(paper, caption), num_keys)
    assert len(expected) == number
    found = {key[:-1]: (value.mean, value.std) for key, value in published(name).items()}
    lowered = {tuple(part.lower() for part in key): value for key, value in expected.items()}
    assert {tuple(part.lower() for part in key): value for key, value in found.items()} == lowered


@pytest.mark.parametrize(("name", "caption"), [("segmentation", "tab:semseg"), ("pose", "tab:hpe")])
def test_dense_tables(paper, name, caption):
    _, *rows = table(paper, caption)
    expected = {
        (plain(model), label): tuple(map(float, cell.split("/")))
        for model, *cells in rows
        for label, cell in zip(("Baseline", "SGS"), cells, strict=True)
    }
    assert len(expected) == 6
    found = {key[:-1]: (value.mean, *value.other.values()) for key, value in published(name).items()}
    assert found == expected


def test_no_table_is_missing(paper):
    assert len(tables(paper)) == 8
    assert {name for name in STUDIES if any(arm.published for arm in get_study(name).arms("paper"))} >= {
        *("cifar", "imagenet", "search-methods", "architectures", "optimizers", "sensitivity", "segmentation", "pose"),
    }


def test_search_spaces(paper):
    assert r"\{0.8, 1.0, 1.25, 1.7, 5.0, 10, 100\}" in paper
    assert RATIOS == (0.8, 1.0, 1.25, 1.7, 5.0, 10, 100)
    assert r"k\in\{1,2,3,4,5,6\}" in paper
    assert AUTOCORRELATION_K == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("name", "seeds", "words"), [("cifar", 5, "5 independent replicas"), ("imagenet", 3, "3 seeds")]
)
def test_numbers_of_runs(paper, name, seeds, words):
    assert words in paper
    assert get_study(name).published_seeds == get_study(name).num_seeds["paper"] == seeds


@pytest.mark.parametrize("scale", ["desk", "pocket"])
@pytest.mark.parametrize("name", STUDIES)
def test_smaller_scales_show_nothing_else(name, scale):
    whole = {value for arm in get_study(name).arms("paper") for value in map(str, arm.published)}
    assert {value for arm in get_study(name).arms(scale) for value in map(str, arm.published)} <= whole
