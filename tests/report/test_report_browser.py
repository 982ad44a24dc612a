"""The HTML page in a real browser: it shows, sorts and copies; it asks nobody for anything."""

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Seen, opened
from stories import hostile, kernels, whole, without_charts

from stepscope.report.render.html import page as html
from stepscope.report.story.blocks import Story

TIMELINE = "function stepscopeTimeline(root, payload) { root.textContent = payload.byteLength; }"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render_page(whole()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without charts: for what these do not matter to."""
    path = tmp_path_factory.mktemp("page") / "light.html"
    path.write_text(html.render_page(without_charts(whole())), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def desk(chromium: Any, file: Path) -> Iterator[Seen]:
    """One open report; each test looks at a part of its own."""
    with opened(chromium, file) as seen:
        yield seen


def column(seen: Seen, number: int) -> list[str]:
    rows = f"#table-kernels tbody tr:not([hidden]) td:nth-child({number})"
    return seen.page.locator(rows).all_text_contents()


def drawn(seen: Seen) -> None:
    seen.page.wait_for_selector("html[data-charts]", state="attached")


def test_it_opens_without_a_complaint_and_without_a_request(desk: Seen) -> None:
    drawn(desk)
    assert desk.problems == []
    assert desk.requests == []


def test_every_chart_is_drawn(desk: Seen) -> None:
    drawn(desk)
    plots = desk.page.locator(".plot")
    shapes = "els => els.map(el => el.querySelectorAll('path').length)"
    assert plots.count() == 7
    assert all(count > 0 for count in plots.evaluate_all(shapes))


def test_the_theme_switches_and_charts_follow(desk: Seen) -> None:
    drawn(desk)
    bars = "getComputedStyle(document.querySelector('#chart-step .bars path')).fill"
    ink = "getComputedStyle(document.body).color"
    before = desk.page.evaluate(f"[{bars}, {ink}]")
    button = desk.page.get_by_role("button", name="Dark theme")
    button.click()
    pressed = button.get_attribute("aria-pressed")
    after = desk.page.evaluate(f"[{bars}, {ink}]")
    button.click()
    again = desk.page.evaluate(f"[{bars}, {ink}]")
    assert pressed == "true"
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert again == before


def test_tables_sort_by_number_and_by_name_with_unknown_ones_last(desk: Seen) -> None:
    rows = kernels().rows
    heads = desk.page.locator("#table-kernels th")
    heads.nth(3).locator("button").click()
    falling = column(desk, 4)[0], heads.nth(3).get_attribute("aria-sort")
    heads.nth(3).locator("button").press("Enter")
    rising = column(desk, 4)[0], heads.nth(3).get_attribute("aria-sort")
    desk.page.locator('#table-kernels [data-act="all"]').click()
    heads.nth(5).locator("button").click()
    shares = column(desk, 6)
    heads.nth(0).locator("button").click()
    names = column(desk, 1)[:2]
    for _ in range(2):
        heads.nth(0).locator("button").click()
    assert falling == ("120", "descending")
    assert rising == ("2.01", "ascending")
    assert shares[-15:] == ["–"] * 15
    assert shares[0] == "45.0%"
    assert names == ["elementwise_1", "elementwise_2"]
    assert column(desk, 1) == [row[0] for row in rows]


def test_tables_filter_as_one_types(desk: Seen) -> None:
    box = desk.page.get_by_role("searchbox", name="Filter Kernels")
    box.fill("COPY")
    found = column(desk, 2)
    box.fill("no such kernel")
    none = column(desk, 1), desk.page.locator("#table-kernels .table-more").inner_text()
    box.fill("")
    assert set(found) == {"copy"}
    assert len(found) == 20
    assert none == ([], "No row has this.")


def test_a_table_is_saved_as_csv_with_whole_numbers(desk: Seen) -> None:
    with desk.page.expect_download() as waiting:
        desk.page.locator('#table-kernels [data-act="csv"]').click()
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    head, *rows = csv.reader(io.StringIO(text))
    assert waiting.value.suggested_filename == "kernels.csv"
    assert head == ["kernel", "category", "count [per step]", "total [ms]", "share", "of peak"]
    known = [["" if cell is None else str(cell) for cell in row] for row in kernels().rows]
    assert rows == known


def test_a_chart_is_saved_as_a_picture(desk: Seen) -> None:
    drawn(desk)
    plot = desk.page.locator("#chart-batches .plot")
    plot.hover()
    with desk.page.expect_download() as waiting:
        plot.locator('[data-attr="download"], [data-title*="ownload"]').first.click()
    assert waiting.value.suggested_filename == "chart-batches.png"
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")
    assert desk.requests == []


def test_edits_and_commands_are_copied(chromium: Any, light: Path) -> None:
    with opened(chromium, light, permissions=["clipboard-read", "clipboard-write"]) as seen:
        buttons = seen.page.locator('.card [data-act="copy"]')
        buttons.nth(0).click()
        edit = seen.page.evaluate("navigator.clipboard.readText()")
        buttons.nth(1).click()
        command = seen.page.evaluate("navigator.clipboard.readText()")
        label = buttons.nth(1).inner_text()
    assert edit.splitlines()[0] == "loader = DataLoader("
    assert len(edit.splitlines()) == 3
    assert command == "stepscope run --fix workers=12 train.py --epochs 3"
    assert label == "Copied"


def test_without_a_clipboard_the_text_is_selected(chromium: Any, light: Path) -> None:
    none = "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    with opened(chromium, light, none) as seen:
        button = seen.page.locator('.card [data-act="copy"]').nth(1)
        button.click()
        label = button.inner_text()
        selected = seen.page.evaluate("getSelection().toString()")
        assert seen.problems == []
    assert label == "Selected"
    assert selected == "stepscope run --fix workers=12 train.py --epochs 3"


def test_an_older_browser_is_told_so_in_place_of_charts(chromium: Any, file: Path) -> None:
    with opened(chromium, file, "delete globalThis.DecompressionStream") as seen:
        told = seen.page.locator(".plot").all_inner_texts()
        assert seen.problems == []
    assert told == ["Drawn by browsers from 2023 on; this one is older."] * 7


def test_a_story_without_anything_is_still_a_page_and_keeps_its_theme(
    chromium: Any, tmp_path: Path
) -> None:
    file = tmp_path / "empty.html"
    file.write_text(html.render_page(Story("t", "Nothing was recorded.", "", (), "run")), "utf-8")
    with opened(chromium, file) as seen:
        first = seen.page.evaluate("document.documentElement.dataset.theme")
        seen.page.get_by_role("button", name="Dark theme").click()
        for _ in range(20):  # a browser keeps what a page stores in its own time
            seen.page.reload()
            then = seen.page.evaluate("document.documentElement.dataset.theme")
            if then != first:
                break
        said = seen.page.get_by_role("heading", level=1).inner_text()
        assert seen.problems == []
    assert (first, then) == ("light", "dark")
    assert said == "Nothing was recorded."


def test_the_bar_tells_the_section_and_the_verdict_once_it_is_out_of_sight(desk: Seen) -> None:
    desk.page.locator("nav a", has_text="Kernels").click()
    desk.page.wait_for_selector('nav a[aria-current]:has-text("Kernels")')
    past = desk.page.locator(".bar.past .bar-verdict").inner_text()
    desk.page.evaluate("scrollTo(0, 0)")
    desk.page.wait_for_selector(".bar:not(.past)")
    assert past.startswith("63.1 ms a step")


def test_a_finding_leads_to_its_place(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a timeline that only says what it was given."""
    monkeypatch.setattr(html, "assets", lambda _, end: [TIMELINE] if end == ".js" else [])
    file = tmp_path / "report.html"
    page = html.render_page(without_charts(whole()), gzip.compress(b"0123456789"))
    file.write_text(page, encoding="utf-8")
    with opened(chromium, file) as seen:
        given = seen.page.locator("#timeline").inner_text()
        seen.page.evaluate(
            "document.addEventListener('stepscope:seek', (e) => (window.sought = e.detail))"
        )
        buttons = seen.page.locator('[data-act="seek"]')
        buttons.nth(0).click()
        place = seen.page.evaluate("sought")
        buttons.nth(1).click()
        name = seen.page.evaluate("sought")
        top = seen.page.locator("#timeline").bounding_box()["y"]
        assert seen.problems == []
    assert given == "10"
    assert 0 < top < 900
    assert place == {"from": 1_000_000, "to": 49_900_000, "search": ""}
    assert name == {"from": None, "to": None, "search": "implicit_convolve_sgemm"}


def test_a_phone_scrolls_down_only(chromium: Any, file: Path) -> None:
    with opened(chromium, file, viewport={"width": 360, "height": 740}, has_touch=True) as seen:
        drawn(seen)
        width = seen.page.evaluate("document.documentElement.scrollWidth")
        wide = seen.page.evaluate(
            "[...document.querySelectorAll('.plot')].filter(p => p.scrollWidth > 340).length"
        )
        assert seen.problems == []
    assert width == 360
    assert wide == 0


def test_on_paper_it_is_light_and_without_buttons(chromium: Any, file: Path) -> None:
    with opened(chromium, file, color_scheme="dark") as seen:
        dark = seen.page.evaluate("document.documentElement.dataset.theme")
        drawn(seen)
        seen.page.emulate_media(media="print")
        seen.page.wait_for_selector('html[data-theme="light"]')
        shown = seen.page.locator(".bar, [data-act], input").filter(visible=True).count()
        page = seen.page.pdf()
        assert seen.problems == []
    assert dark == "dark"
    assert shown == 0
    assert page.startswith(b"%PDF")


def test_a_hostile_story_runs_nothing(chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(html.render_page(hostile(whole())), encoding="utf-8")
    with opened(chromium, file) as seen:
        drawn(seen)
        title = seen.page.title()
        seen.page.locator("#chart-step .nsewdrag").hover(position={"x": 200, "y": 30})
        seen.page.wait_for_selector("#chart-step .hovertext")
        seen.page.get_by_role("button", name="Dark theme").click()
        links = seen.page.evaluate(
            "[...document.querySelectorAll('a')].map(a => a.getAttribute('href') ??"
            " a.getAttribute('xlink:href')).filter(href => href && href[0] !== '#')"
        )
        foreign = seen.page.locator("main img, main iframe, main style").count()
        assert seen.problems == []
        assert seen.requests == []
    assert title.startswith("</script><script>document.title='run'</script>")
    assert links == []
    assert foreign == 0
