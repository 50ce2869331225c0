"""Every Python block of the README and the documentation runs, page by page, in order."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# The frameworks' own advice and deprecations.
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    namespace = {"__name__": "__documentation__"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        # padded, so that a traceback points into the page
        exec(compile("\n" * line + match[1], str(ROOT / page), "exec"), namespace)


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    mkdocs = pytest.importorskip("mkdocs.commands.build")
    from mkdocs.config import load_config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
        mkdocs.build(config)
    assert (tmp_path / "methods" / "sgs" / "index.html").stat().st_size > 10_000
