"""Whatever names and notes hold, it is shown literally."""

import json
import re

import pytest

from spatialgrad.report.page import escape_markdown, write_report
from spatialgrad.train.run import Run
from support.report import arm, record, write_run

SCRIPT = "<script>window.pwned = 1; alert(1)</script>"
BREAKOUT = '"></option></select></script><script>window.pwned = 1</script>'
TABLE = "a | b\n| --- | `c` | ${2+2} <!-- [x](javascript:alert(1))"
FORMULA = r"$\frac{1$ _x_ {{ 7*7 }} {% raw %}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page and the Markdown of a study whose texts are markup."""
    folder = tmp_path_factory.mktemp("texts") / "cifar-desk"
    group = {f"Data {SCRIPT}": f"D {BREAKOUT}"}
    arms = [arm("a", f"Origin {SCRIPT}", group, (0, 1), reference=True, note=TABLE)]
    arms.append(arm("b", f"_{FORMULA}", group, (0, 1), method="sgs"))
    layers = [(f"layer {BREAKOUT}", 3), (f"conv {SCRIPT}", 7)]
    for each in arms:
        write_run(folder / each.runs[0].folder, 0.5, layers=layers, config=each.config, dataset=SCRIPT + BREAKOUT)
    environment = folder / "runs/a/seed0/environment.json"
    environment.write_text(json.dumps({"cpu": SCRIPT, "commit": BREAKOUT, "versions": {SCRIPT: SCRIPT}}))
    examples = folder / "runs/a/seed0/examples"
    examples.mkdir()
    (folder / "secret.png").write_bytes(b"secret")
    (examples / "one.png").write_bytes(b"\x89PNG")
    images = [{"title": BREAKOUT, "file": "one.png"}, {"title": "t", "file": "../../../../secret.png"}]
    index = {"examples": [{"caption": SCRIPT, "images": images}], "legend": [{"name": SCRIPT, "colour": "#ff0000"}]}
    (examples / "examples.json").write_text(json.dumps(index))
    Run.open(folder / "runs/b/seed1").record_failure(f"failed with {SCRIPT}\n{TABLE}", 1)
    texts = {"title": f"Title {SCRIPT}", "shows": BREAKOUT, "question": SCRIPT, "note": TABLE, "differences": SCRIPT}
    figures = ("cost", "learning-curves", "overhead", "scalings", "dependence", "centre-share", "examples")
    record(arms, seeds=(0, 1), name="$(touch pwned)", cost_unit=SCRIPT, figures=figures, **texts).write(folder)
    page = write_report([folder])
    return page.read_text(), page.with_name("report.md").read_text()


def test_the_page_has_its_own_elements_only(written):
    page, _ = written
    scripts = re.findall(r"<script[^>]*>", page)
    assert scripts == ['<script type="application/json">', "<script>"]
    assert page.count("<img ") == 2
    assert page.count("</option>") == 0
    assert "c2VjcmV0" not in page  # of the picture outside of the run's folder
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert data["runs"][0]["layers"] == [f"layer {BREAKOUT}", f"conv {SCRIPT}"]
    assert "{{ 7*7 }}" in page


def test_markdown_has_its_own_structure_only(written):
    _, text = written
    assert not re.search(r"<script|<img|!\[", text)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 3
    for lines in tables:
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1, lines
    assert "'$(touch pwned)'" in text


def test_inline_text():
    assert escape_markdown("a|b\nc`d`") == r"a\|b c\`d\`"
    assert escape_markdown("<b> & *x* _y_ [z](w) \\") == r"&lt;b&gt; &amp; \*x\* \_y\_ \[z\](w) \\"
