"""One browser, and studies on disk that many tests read."""

import pytest

from support.browser import browser, opening  # noqa: F401 (fixtures)
from support.report import architectures, real_study, search_study, table_1


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Real trainings: a baseline and SGS, two seeds each."""
    folder = tmp_path_factory.mktemp("real") / "learned-scalings-pocket"
    real_study(folder)
    return folder


@pytest.fixture(scope="session")
def cifar(tmp_path_factory):
    """A synthetic Table 1 with a failed run and a waiting one."""
    folder = tmp_path_factory.mktemp("cifar") / "cifar-desk"
    table_1(folder)
    return folder


@pytest.fixture(scope="session")
def networks(tmp_path_factory):
    """A synthetic table of 17 networks."""
    folder = tmp_path_factory.mktemp("networks") / "architectures-desk"
    architectures(folder)
    return folder


@pytest.fixture(scope="session")
def searched(tmp_path_factory):
    """Synthetic searches."""
    folder = tmp_path_factory.mktemp("searched") / "search-methods-desk"
    search_study(folder)
    return folder


@pytest.fixture(scope="session")
def page(real, cifar, networks, searched, tmp_path_factory):
    """One page about all of them."""
    from spatialgrad.report.write import write_report

    return write_report([cifar, real, searched, networks], tmp_path_factory.mktemp("page"))
