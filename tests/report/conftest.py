"""One browser, and studies on disk that many tests read."""

import pytest

from spatialgrad.report.page import write_report
from support.browser import browser, opening  # noqa: F401 (fixtures)
from support.report import architectures, real_study, search_study, table_1


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Write a study into a folder of this name, and give the folder."""

    def write(build, name):
        folder = tmp_path_factory.mktemp("studies") / name
        build(folder)
        return folder

    return write


@pytest.fixture(scope="session")
def real(written):
    """Real trainings: a baseline and SGS, two seeds each."""
    return written(real_study, "learned-scalings-pocket")


@pytest.fixture(scope="session")
def cifar(written):
    """A synthetic Table 1 with a failed run and a waiting one."""
    return written(table_1, "cifar-desk")


@pytest.fixture(scope="session")
def networks(written):
    """A synthetic table of 17 networks."""
    return written(architectures, "architectures-desk")


@pytest.fixture(scope="session")
def searched(written):
    """Synthetic searches."""
    return written(search_study, "search-methods-desk")


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """Give the folder of a study's report; it is written once."""
    folders = {}

    def report(study):
        if study not in folders:
            folders[study] = write_report([study], tmp_path_factory.mktemp("report")).parent
        return folders[study]

    return report


@pytest.fixture(scope="session")
def page(real, cifar, networks, searched, tmp_path_factory):
    """One page about all of them."""
    return write_report([cifar, real, searched, networks], tmp_path_factory.mktemp("page"))
