"""One browser, and studies on disk that many tests read."""

import shutil
from contextlib import contextmanager

import pytest

from support.report import architectures, real_study, search_study, table_1

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; not for longer, as nothing else in this process can use asyncio meanwhile."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"needs a browser in the path: {', '.join(names)}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Opened:
    """A page, and everything that it did that it must not do."""

    def __init__(self, page):
        self.page, self.errors, self.requests, self.dialogs = page, [], [], []
        page.on("console", lambda message: self.errors.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()


@pytest.fixture
def opening(browser):
    """Open a file in a context of its own: `with opening(path, color_scheme="dark") as opened`."""

    @contextmanager
    def opening(path, *, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        try:
            opened = Opened(context.new_page())
            opened.page.goto(path.resolve().as_uri())
            yield opened
        finally:
            context.close()

    return opening


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
def page(real, cifar, networks, searched, tmp_path_factory):
    """One page about all of them."""
    from spatialgrad.report.write import write_report

    return write_report([cifar, real, searched, networks], tmp_path_factory.mktemp("page"))
