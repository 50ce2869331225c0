"""Whatever names and notes hold, it is shown literally and does nothing."""

import base64
import json
import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from spatialgrad.report.render.html import script_data
from spatialgrad.report.render.markdown import inline
from spatialgrad.report.write import write_report
from spatialgrad.studies.study import RunRecord
from spatialgrad.train import Run
from support.report import arm, made_up, record, write_run

pytestmark = pytest.mark.xdist_group("browser")

SCRIPT = "<script>window.pwned = 1; alert(1)</script>"
IMAGE = "<img src=x onerror='window.pwned = 1'>"
BREAKOUT = '"></option></select></script><script>window.pwned = 1</script>'
TABLE = "a | b\n| --- | `c` | ${2+2} <!-- [x](javascript:alert(1))"
FORMULA = r"$\frac{1$ _x_ \u2028 {{ 7*7 }} {% raw %}"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def hostile(tmp_path):
    folder = tmp_path / "studies" / "cifar-desk"
    arms = [
        arm("a", f"Origin {SCRIPT}", {f"Data {IMAGE}": f"D {BREAKOUT}"}, (0, 1), reference=True, note=TABLE),
        arm("b", f"_{FORMULA}", {f"Data {IMAGE}": f"D {BREAKOUT}"}, (0, 1), method="sgs"),
    ]
    for key in "ab":
        write_run(folder / f"runs/{key}/seed0", 0.5, layers=[(f"layer {BREAKOUT}", 3), (f"conv {IMAGE}", 7)])
        environment = json.loads((folder / f"runs/{key}/seed0/environment.json").read_text())
        environment |= {"cpu": SCRIPT, "commit": IMAGE, "versions": {SCRIPT: IMAGE}}
        (folder / f"runs/{key}/seed0/environment.json").write_text(json.dumps(environment))
        result = json.loads((folder / f"runs/{key}/seed0/result.json").read_text())
        (folder / f"runs/{key}/seed0/result.json").write_text(json.dumps(result | {"dataset": SCRIPT + BREAKOUT}))
    (folder / "runs/a/seed0/examples").mkdir()
    (folder / "runs/a/seed0/examples/one.png").write_bytes(PIXEL)
    (folder / "secret.png").write_bytes(PIXEL)
    examples = {
        "examples": [
            {
                "caption": SCRIPT,
                "images": [
                    {"title": BREAKOUT, "file": "one.png"},
                    {"title": "secret", "file": "../../../../secret.png"},
                ],
            }
        ],
        "legend": [
            {"name": IMAGE, "colour": "#ff0000"},
            {"name": "bad colour", "colour": "red;background:url(https://example.org/)"},
        ],
    }
    (folder / "runs/a/seed0/examples/examples.json").write_text(json.dumps(examples))
    Run.open(folder / "runs/b/seed1").record_failure(f"failed with {SCRIPT}\n{TABLE}", 1)
    record(
        arms,
        seeds=(0, 1),
        name="$(touch pwned)",
        title=f"Title {SCRIPT}",
        shows=BREAKOUT,
        question=IMAGE,
        note=TABLE,
        differences=SCRIPT,
        cost_unit=SCRIPT,
        figures=("cost", "learning-curves", "overhead", "scalings", "examples"),
    ).write(folder)
    return folder


def test_nothing_runs_and_everything_is_shown_literally(hostile, opening):
    with opening(write_report([hostile])) as opened:
        opened.page.wait_for_timeout(300)
        assert opened.errors == []
        assert opened.dialogs == []
        assert opened.page.evaluate("window.pwned") is None
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
        visible = opened.page.inner_text("main")
        for text in (f"Title {SCRIPT}", IMAGE, BREAKOUT, f"Origin {SCRIPT}", FORMULA, f"failed with {SCRIPT}"):
            assert text in visible, text
        assert opened.page.locator("script").count() == 2
        assert opened.page.locator("img").count() == 1
        assert opened.page.title() == f"Title {SCRIPT}"
        assert opened.page.evaluate("document.images[0].alt") == f"Origin {SCRIPT}, seed 0, {SCRIPT}: {BREAKOUT}"
        layers = opened.page.locator(".depth label").all_inner_texts()
        assert layers == [f"layer {BREAKOUT}", f"conv {IMAGE}"]
        # Two runs with these layers can be chosen; what is drawn is theirs.
        opened.page.locator(".depth input").nth(1).press("ArrowLeft")
        G = made_up([(f"layer {BREAKOUT}", 3)], 3)[f"layer {BREAKOUT}"]
        shown = opened.page.locator(".large .map").inner_text().split("\n")
        assert shown == [f"{value:.2f}" for row in G for value in row]


def test_a_picture_outside_of_the_run_is_not_embedded(hostile):
    page = write_report([hostile]).read_text()
    assert page.count("data:image/png") == 1
    assert "outside its folder" in page
    assert "url(https" not in page


def test_markdown_has_its_own_structure_only(hostile):
    write_report([hostile])
    text = (hostile / "report/report.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "![" not in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 3
    for lines in tables:
        widths = {line.replace("\\|", "").count("|") for line in lines}
        assert len(widths) == 1, lines
    assert "'$(touch pwned)'" in text


def test_inline_text():
    assert inline("a|b\nc`d`") == r"a\|b c\`d\`"
    assert inline("<b> & *x* _y_ [z](w) \\") == r"&lt;b&gt; &amp; \*x\* \_y\_ \[z\](w) \\"


@pytest.mark.parametrize(
    "address",
    ["https://example.org/x", "see http://example.org", "WWW.example.org", "ftp://example.org", "someone@example.org"],
)
def test_addresses_do_not_become_links(address):
    text = inline(address)
    assert not re.search(r"://|www\.|\w@", text, re.IGNORECASE)
    assert text.replace("<!-- -->", "") == address
    markdown = MarkdownIt("commonmark").render(text)
    assert "<a " not in markdown


def test_addresses_in_a_report_are_not_links(tmp_path):
    """Wherever a text comes from: a renderer such as GitHub's makes a link of any bare address."""
    address = "https://example.org/a"
    arms = [arm("a", f"Origin {address}", {f"D {address}": f"x {address}"}, (0, 1), note=address)]
    write_run(tmp_path / "runs/a/seed0", 0.5, layers=[(f"conv {address}", 3)])
    for name, key in (("environment.json", "cpu"), ("result.json", "dataset")):
        path = tmp_path / "runs/a/seed0" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: address}))
    Run.open(tmp_path / "runs/a/seed1").record_failure(address, 1)
    texts = dict.fromkeys(("title", "shows", "question", "note", "differences"), address)
    record(arms, seeds=(0, 1), figures=("learning-curves", "overhead", "scalings"), **texts).write(tmp_path)
    page = write_report([tmp_path])
    markdown = page.with_name("report.md").read_text()
    assert "://" not in markdown
    assert markdown.count("example.org/a") >= 9
    html = page.read_text()
    assert address in html
    assert not re.search(r"(href|src|action)=.?https?:", html)


def test_control_characters_are_replaced(tmp_path):
    arms = [arm("a", "Or\x00igin\x1b[31m\x07", {"D": "\u202ex\x85"}, (0,))]
    write_run(tmp_path / "runs/a/seed0", 0.5, layers=[("conv\x00\x08\ufffe", 3)])
    Run.open(tmp_path / "runs/a/seed1").record_failure("\x1b]0;title\x07 failed\x00", 1)
    arms[0] = replace(arms[0], runs=(*arms[0].runs, RunRecord(folder="runs/a/seed1", seed=1)))
    figures = ("cost", "learning-curves", "overhead", "scalings", "dependence", "centre-share")
    record(arms, seeds=(0, 1), title="T\x00\x1b", figures=figures).write(tmp_path)
    page = write_report([tmp_path])
    for path in (page, page.with_name("report.md")):
        text = path.read_text()
        # Those of a terminal, and those that reverse the direction of a text.
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), path.name
        assert "igin" in text


def test_data_of_scripts():
    values = {"</script>": ["<!--", "\u2028", "&amp;", "é"]}
    text = script_data(values)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == values


def test_a_command_and_a_seed_stay_what_they_are_in_markdown(tmp_path):
    arms = [arm("a", "Origin", {"D": "x"}, (IMAGE,))]
    record(arms, seeds=(0,), name=f"x\n```\n{SCRIPT}", scale=f"desk\n```\n{SCRIPT}", figures=()).write(tmp_path)
    write_report([tmp_path])
    text = (tmp_path / "report/report.md").read_text()
    assert "<img" not in text
    fenced = text[text.index("```bash") :].splitlines()
    assert [line for line in fenced if line.startswith("```")] == ["```bash", "```"]
    assert "<script" not in text.replace(fenced[1], "")
