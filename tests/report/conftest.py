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
