"""The page in a real browser: it loads nothing, works by keyboard, in light and dark, on paper and on a phone."""

import json
from itertools import pairwise

import pytest

from spatialgrad.report.page import write_report
from support.report import architectures, arm, record, write_arm

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

FIGURES = (
    "study-1-cost study-1-learning-curves study-1-overhead study-1-scalings study-2-learning-curves study-2-overhead "
    "study-2-scalings study-2-centre-share study-2-dependence study-2-kernel-magnitudes study-2-kernel-similarity "
    "study-3-k-curve study-3-search study-4-learning-curves study-4-overhead"
).split()


def test_it_loads_without_errors_and_asks_for_nothing(page, opening):
    with opening(page) as opened:
        opened.page.wait_for_timeout(300)
        assert opened.errors == []
        assert [url for url in opened.requests if not url.startswith("data:")] == [page.resolve().as_uri()]


def test_every_figure_has_an_alternative_text_with_numbers(page, opening):
    with opening(page) as opened:
        assert opened.page.eval_on_selector_all("section.figure", "all => all.map(each => each.id)") == FIGURES
        for name in FIGURES:
            drawing = opened.page.locator(f"#{name} [role=img].drawing")
            text = drawing.get_attribute("aria-label")
            assert any(c.isdigit() for c in text), name
            assert len(text) > 30
            assert drawing.locator("svg").first.bounding_box()["height"] > 40
        assert opened.page.locator("img:not([alt])").count() == 0


def test_ids_are_unique_and_references_lead_somewhere(page, opening):
    with opening(page) as opened:
        ids = opened.page.eval_on_selector_all("[id]", "all => all.map(each => each.id)")
        assert len(ids) == len(set(ids))
        dangling = opened.page.evaluate("""() => [...document.querySelectorAll("[href^='#'], use, [aria-labelledby]")]
            .map(e => e.getAttribute("aria-labelledby")
                || (e.getAttribute("href") || e.getAttribute("xlink:href")).slice(1))
            .filter(id => !document.getElementById(id))""")
        assert dangling == []


def test_headings_have_an_order_and_the_page_a_language(page, opening):
    with opening(page) as opened:
        levels = opened.page.eval_on_selector_all("h1,h2,h3,h4", "all => all.map(each => Number(each.tagName[1]))")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert opened.page.get_attribute("html", "lang") == "en"
        assert opened.page.locator("main").count() == 1
        opened.page.keyboard.press("Tab")
        assert opened.page.evaluate("document.activeElement.className") == "skip"


def column(opened, table, index):
    rows = opened.page.locator("table.data").nth(table).locator("tbody tr")
    return [rows.nth(row).locator("th,td").nth(index).inner_text().split("\n")[0] for row in range(rows.count())]


def test_sorting_by_keyboard_changes_the_rows_and_says_so(page, opening):
    with opening(page) as opened:
        head = opened.page.locator("table.data").first.locator("thead th").nth(2)
        assert head.inner_text() == "Ours (%)"
        before = column(opened, 0, 2)
        numbers = sorted(float(text.split()[0]) for text in before)
        assert [float(text.split()[0]) for text in before] not in (numbers, numbers[::-1])
        head.locator("button").focus()
        opened.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert [float(text.split()[0]) for text in column(opened, 0, 2)] == numbers
        opened.page.keyboard.press("Space")
        assert head.get_attribute("aria-sort") == "descending"
        assert [float(text.split()[0]) for text in column(opened, 0, 2)] == numbers[::-1]
        opened.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "none"
        assert column(opened, 0, 2) == before


def test_cells_without_a_value_sort_last_both_ways(page, opening):
    with opening(page) as opened:
        titles = opened.page.locator("table.data").first.locator("thead th").all_inner_texts()
        index = titles.index("p")
        button = opened.page.locator("table.data").first.locator("thead th").nth(index).locator("button")
        for _ in range(2):
            button.press("Enter")
            assert column(opened, 0, index)[-2:] == ["–", "–"]
            assert column(opened, 0, index)[0] != "–"


def shown(opened):
    return opened.page.locator("#study-1-scalings .large .map").inner_text().split("\n")


def test_layers_updates_and_runs_are_chosen_by_keyboard(page, cifar, opening):
    lines = (cifar / "runs/cifar-10-sgs-ours/seed0/scalings.jsonl").read_text().splitlines()
    updates = [json.loads(line)["scalings"] for line in lines]

    def flat(update, layer):
        return [f"{value:.2f}" for row in list(updates[update].values())[layer] for value in row]

    with opening(page) as opened:
        explorer = opened.page.locator("#study-1-scalings .explorer")
        assert shown(opened) == flat(-1, 0)
        explorer.locator("input[type=radio]").first.focus()
        opened.page.keyboard.press("ArrowRight")
        opened.page.keyboard.press("ArrowRight")
        assert shown(opened) == flat(-1, 2)
        assert flat(-1, 2) != flat(-1, 0)
        assert "features.6" in explorer.locator("output").inner_text()
        explorer.locator("input[type=range]").focus()
        opened.page.keyboard.press("Home")
        assert shown(opened) == flat(0, 2)
        assert "update 1 of" in explorer.locator("output").inner_text()
        assert explorer.locator("input[type=range]").get_attribute("aria-valuetext") == "after epoch 1"
        assert flat(0, 2)[4] in explorer.locator(".large").get_attribute("aria-label")
        select = explorer.locator("select")
        select.focus()
        opened.page.keyboard.press("ArrowDown")
        assert select.evaluate("each => each.selectedOptions[0].textContent") == "CIFAR-100 · SGS (ours), seed 0"
        assert opened.errors == []


CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const f = (v) => v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => { return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !e.checkVisibility()) continue;
    if (e.closest("script, svg, .skip, details:not([open]) > p")) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
    found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.className || e.tagName, e.textContent.slice(0, 30)]);
  }
  return found;
}"""
SVG_CONTRAST = (
    """() => [...document.querySelectorAll("section.figure svg text")].map((e) => getComputedStyle(e).fill)"""
)


def background(opened):
    return opened.page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_dark(page, opening, scheme):
    with opening(page, color_scheme=scheme) as opened:
        measured = opened.page.evaluate(CONTRAST)
        assert len(measured) > 500
        assert [each for each in measured if each[0] < 4.5] == []
        # Text of drawings outside of coloured squares has the page's own colour.
        ink = opened.page.evaluate("getComputedStyle(document.body).color")
        fills = set(opened.page.evaluate(SVG_CONTRAST))
        assert ink in fills
        assert fills <= {ink, "rgb(0, 0, 0)", "rgb(255, 255, 255)"}


def test_light_and_dark_differ(page, opening):
    with opening(page, color_scheme="light") as light, opening(page, color_scheme="dark") as dark:
        assert background(light) != background(dark)
        line = "#study-1-learning-curves svg path[style*='--series-0']"
        strokes = [
            each.page.locator(line).first.evaluate("e => getComputedStyle(e).stroke + getComputedStyle(e).fill")
            for each in (light, dark)
        ]
        assert strokes[0] != strokes[1]


def test_on_paper_controls_vanish_and_everything_else_is_there(page, opening):
    with opening(page, color_scheme="dark") as opened:
        assert opened.page.locator(".explorer").first.is_visible()
        opened.page.emulate_media(media="print")
        assert background(opened) == "rgb(255, 255, 255)"
        for hidden in (".explorer", "nav", ".skip"):
            assert not opened.page.locator(hidden).first.is_visible(), hidden
        for name in FIGURES:
            assert opened.page.locator(f"#{name} .drawing").is_visible(), name
        assert all(each.is_visible() for each in opened.page.locator("table.data").all())
        assert [each for each in opened.page.evaluate(CONTRAST) if each[0] < 4.5] == []
        # Nothing is cut off: A4 between margins is 688 pixels wide.
        opened.page.set_viewport_size({"width": 688, "height": 900})
        cut = opened.page.evaluate("""() => [...document.querySelectorAll(".scroll")]
            .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.trim().slice(0, 40))""")
        assert cut == []
        assert opened.page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [320, 768, 1920])
def test_no_screen_makes_the_page_scroll_sideways(page, opening, width):
    with opening(page, width=width) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 320:
            wide = opened.page.locator(".scroll:has(svg)").first
            assert wide.evaluate("e => e.scrollWidth > e.clientWidth")
            wide.focus()
            opened.page.keyboard.press("ArrowRight")
            opened.page.wait_for_timeout(500)
            assert wide.evaluate("e => e.scrollLeft") > 0


CELLS = """(tables, titles) => tables.flatMap((table) => {
  const chosen = [...table.tHead.rows[0].cells].filter((head) => !titles || head.textContent.includes(titles));
  return chosen.flatMap((head) => [...table.rows].map((row) => {
    const { left, right } = row.cells[head.cellIndex].getBoundingClientRect();
    return [head.textContent, left, right];
  }));
})"""


def test_a_phone_shows_every_accuracy_without_scrolling_sideways(page, opening):
    with opening(page, width=390) as opened:
        cells = opened.page.locator("table.data").evaluate_all(CELLS, "ours (%)")
        cells += opened.page.locator("table.data").evaluate_all(CELLS, "Ours (%)")
        assert len(cells) > 40
        assert [cell for cell in cells if cell[1] < 0 or cell[2] > 390] == []
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
        for caption in opened.page.locator(".caption").all():
            box = caption.bounding_box()
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 390


def test_a_laptop_shows_every_column_of_the_cost_tables(page, opening):
    with opening(page, width=1280) as opened:
        costs = opened.page.locator(".caption:has-text('Cost') + .scroll table")
        assert costs.count() == 4
        cells = costs.evaluate_all(CELLS, "")
        assert sum(cell[0] == "Share of updates (%)" for cell in cells) > 10
        assert [cell for cell in cells if cell[1] < 0 or cell[2] > 1280] == []
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280
        hidden = costs.evaluate_all("all => all.map((t) => t.parentElement.scrollWidth - t.parentElement.clientWidth)")
        assert max(hidden) <= 0


def test_what_is_the_same_in_every_row_is_in_the_caption(tmp_path):
    arms = [arm(key, key, {"D": "x"}, (0, 1), reference=key == "a") for key in "ab"]
    for each, accuracy in zip(arms, (0.5, 0.6), strict=True):
        write_arm(tmp_path, each, [accuracy] * 2)
    record(arms, seeds=(0, 1), figures=()).write(tmp_path)
    text = write_report([tmp_path], tmp_path / "report").read_text()
    assert '<span class="constants">D: x · Seeds: 2</span>' in text
    markdown = (tmp_path / "report/report.md").read_text()
    assert "** · D: x · Seeds: 2\n" in markdown
    assert "| Method | Ours (%) |" in markdown


def test_without_javascript_everything_but_the_controls_is_there(page, opening):
    with opening(page, java_script_enabled=False) as opened:
        assert opened.page.locator("table.data").count() >= 9
        assert all(each.is_visible() for each in opened.page.locator("table.data").all())
        assert opened.page.locator("table.data button").count() == 0
        assert not opened.page.locator(".explorer").first.is_visible()
        assert opened.page.locator("#study-1-scalings svg").first.is_visible()


def test_a_table_of_seventeen_networks_has_a_row_for_each(networks, opening, tmp_path):
    assert len(architectures(tmp_path / "again").arms) == 34
    with opening(write_report([networks], tmp_path)) as opened:
        titles = opened.page.locator("table.data").first.locator("thead th").all_inner_texts()
        assert titles == [
            "Model",
            "Baseline, ours (%)",
            "SGS (Ours), ours (%)",
            "Difference [95\u00a0%\u00a0CI]",
            "p",
            "Baseline, published (%)",
            "SGS (Ours), published (%)",
            "Published difference",
        ]
        assert "Seeds: 3" in opened.page.locator(".caption").first.inner_text()
        assert opened.page.locator("table.data").first.locator("tbody tr").count() == 17
        opened.page.locator("nav a", has_text="Learning curves").focus()
        opened.page.keyboard.press("Enter")
        assert opened.page.url.endswith("#study-1-learning-curves")


def test_layers_of_very_deep_networks_can_be_chosen(tmp_path, opening):
    """More values than a function of a browser takes arguments."""
    layers = [(f"layer{number}", 3) for number in range(220)]
    arms = [arm(key, key, {"D": "x"}, (0,), method="sgs", epochs=13) for key in "abcdefgh"]
    for each in arms:
        write_arm(tmp_path, each, [0.5], layers=layers)
    record(arms, seeds=(0,), figures=("scalings",)).write(tmp_path)
    page = write_report([tmp_path])
    assert page.stat().st_size < 3_000_000
    with opening(page) as opened:
        assert opened.errors == []
        assert opened.page.locator(".depth label").count() == 220
