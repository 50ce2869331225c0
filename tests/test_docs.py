"""README and documentation: code that runs, links that lead somewhere, a site that is complete and looks right."""

import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import pyplot

import spatialgrad
from support.browser import browser, opening  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
TOO_WIDE = """all => all.filter(e => e.scrollWidth > e.clientWidth + 1
    && (e === document.documentElement || getComputedStyle(e).overflowX !== "visible")
    && e.checkVisibility() && !e.matches(".pst-scrollable-table-container, .formula, .wide-picture, .scroll"))
    .map(e => e.outerHTML.slice(0, 200))"""
"""What scrolls sideways, or is cut off, besides tables, formulas and pictures that are meant to."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# The frameworks' own advice and deprecations.
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is", "ignore:torch.quantize_per", "ignore:.*reduce_range")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(str(page.relative_to(ROOT)), marks=[] if page.name == "README.md" else pytest.mark.slow)
        for page in PAGES
    ],
)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    namespace = {"__name__": "__documentation__"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        # padded, so that a traceback points into the page
        exec(compile("\n" * line + match[1], str(ROOT / page), "exec"), namespace)


def anchors(page):
    """The anchors of a page's headings, as code hosts and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", (ROOT / page).read_text()):
        if "://" in link:
            continue
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page} links to {link}#{anchor}"


def test_nothing_names_a_site_that_is_not_there():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if Path(name).suffix in {".md", ".toml", ".cff", ".yml", ".py"} and name != "tests/test_docs.py":
            text = (ROOT / name).read_text()
            assert not re.search(r"spatialgrad\.github\.io|github(usercontent)?\.com/spatialgrad", text), name


def test_the_pictures_can_be_drawn_again():
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    pyplot.close(pictures["transform"]("dark"))
    figure = pictures["method"]("light")
    G = [float(text.get_text()) for text in figure.axes[3].texts]
    pyplot.close(figure)
    assert sum(G) / 9 == pytest.approx(1, abs=0.01)
    assert max(G) == G[4]


def public_names():
    """Every package with an `__all__`, and the callbacks, with what they export."""
    for name in ("lightning", "transformers"):
        yield f"spatialgrad.integrations.{name}", ["SpatialGradientScalingCallback"]
    packages = [module.name for module in pkgutil.iter_modules(spatialgrad.__path__) if module.ispkg]
    for package in ("spatialgrad", *(f"spatialgrad.{name}" for name in packages if name != "integrations")):
        exported = getattr(importlib.import_module(package), "__all__", [])
        yield package, [name for name in exported if not name.startswith("__")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-qW", "--keep-going", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


# One build, on one worker, for all tests of the site.
@pytest.mark.slow
@pytest.mark.xdist_group("site")
class TestSite:
    def test_the_api_reference_is_complete(self, site):
        text = "".join(page.read_text() for page in site.glob("api/*.html"))
        for package, names in public_names():
            missing = [name for name in names if f'id="{package}.{name}"' not in text]
            assert not missing, f"docs/api/ does not show {', '.join(missing)} of {package}"

    def test_every_constant_and_field_is_explained(self, site):
        """Their docstrings are found by our own extension, not by Sphinx."""
        text = (site / "api" / "train.html").read_text()
        for name in ("METHODS", "BudgetConfig.epochs"):
            entry = text.split(f'id="spatialgrad.train.{name}"')[1].split("</dl>")[0]
            assert re.search(r"<dd><p>\w+", entry), name
        # A colon in a sentence does not make what is before it a type.
        assert all(">Type<" not in page.read_text() for page in site.glob("api/*.html"))

    def test_formulas_are_typeset_without_a_script(self, site):
        text = (site / "method.html").read_text()
        assert text.count("<math") >= 4
        assert not re.search(r"<script[^>]*(mathjax|katex)", text, re.IGNORECASE)

    def test_pages_need_no_network_and_no_sideways_scrolling(self, site, opening):  # noqa: F811
        for path in sorted(site.rglob("*.html")):
            with opening(path) as opened:
                assert all(url.startswith(("file:", "data:")) for url in opened.requests), path
                for width in (1280, 390):
                    opened.page.set_viewport_size({"width": width, "height": 900})
                    wide = opened.page.eval_on_selector_all("*", TOO_WIDE)
                    assert not wide, f"{path} scrolls sideways at {width} pixels: {wide[:3]}"

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_the_home_page_says_it_all_on_one_screen(self, site, opening, scheme):  # noqa: F811
        with opening(site / "index.html", height=800, color_scheme=scheme) as opened:
            for selector in ("h1", ".hero-code", f".hero-picture img.only-{scheme}", ".facts"):
                box = opened.page.locator(selector).bounding_box()
                assert box["width"] > 300
                assert box["y"] + box["height"] <= 800, selector
