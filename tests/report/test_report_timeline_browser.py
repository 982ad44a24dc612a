"""The timeline in a real browser: it zooms, finds, selects and sums; strangers' text stays text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Seen, opened, until
from handmade import Handmade
from stories import HOSTILE

from stepscope.record.timeline import Timeline
from stepscope.report.render.html.page import render_page
from stepscope.report.render.html.timeline import encode_timeline
from stepscope.report.story.blocks import Section, Story, TimelineView

MS = 1_000_000


def window() -> Timeline:
    """Twenty steps: operators around launches around nothing, a kernel and a copy for each."""
    rng = np.random.default_rng(1)
    made = Handmade()
    for step in range(20):
        at = step * MS
        made.annotation(f"ProfilerStep#{step}", at, at + MS - 1_000)
        for n in range(40):
            start = at + n * 24_000 + int(rng.integers(0, 900))
            made.operator(f"aten::op{n % 5}", start, start + 20_000)
            made.operator(f"aten::inner{n % 3}", start + 1_000, start + 15_000)
            call = made.host("cudaLaunchKernel", start + 2_000, start + 6_000)
            length = int(rng.integers(1_000, 14_000))
            made.work(start + 7_000, start + 7_000 + length, call, name=f"void kernel_{n % 4}<x>")
        made.work(at + 970_000, at + 990_000, name="Memcpy HtoD", bytes=4096, stream="20")
    made.work(7_971_000, 7_989_000, name="rare_kernel", stream="7")
    return made.timeline(span=(0, 20 * MS))


def page_of(folder: Path, payload: bytes) -> Path:
    view = TimelineView(5, "window.pt.trace.json.gz")
    story = Story("t", "verdict", "", (Section("timeline", "Timeline", (view,)),), "trace")
    file = folder / "report.html"
    file.write_text(render_page(story, payload), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(tmp_path_factory.mktemp("timeline"), encode_timeline(window()))


@pytest.fixture
def desk(chromium: Any, file: Path) -> Iterator[Seen]:
    with opened(chromium, file) as seen:
        seen.page.locator("#timeline").scroll_into_view_if_needed()
        yield seen
        assert seen.problems == []
        assert seen.requests == []


def state(seen: Seen, what: str) -> Any:
    return seen.page.evaluate(f"document.getElementById('timeline').timeline.state.{what}")


def body(seen: Seen) -> dict[str, float]:
    seen.page.locator(".tl-body").scroll_into_view_if_needed()
    box: dict[str, float] = seen.page.locator(".tl-body").bounding_box()
    return box


def settle(seen: Seen) -> None:
    seen.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def test_the_wheel_zooms_around_the_pointer_once_the_timeline_is_clicked(desk):
    box = body(desk)
    x, y = box["x"] + box["width"] / 4, box["y"] + 20
    desk.page.mouse.move(x, y)
    desk.page.mouse.wheel(0, -300)
    desk.page.wait_for_timeout(60)
    assert state(desk, "view") == {"from": 0, "to": 20 * MS}  # the page scrolls instead
    box = body(desk)
    y = box["y"] + 20
    desk.page.mouse.click(x, y)
    desk.page.mouse.wheel(0, -500)
    until(desk.page, "timeline.timeline.state.view.to < 19e6")
    view = state(desk, "view")
    assert view["to"] - view["from"] < 10 * MS
    assert view["from"] + (view["to"] - view["from"]) / 4 == pytest.approx(5 * MS, rel=0.01)


def test_keys_zoom_move_and_show_everything_again(desk):
    desk.page.locator(".tl-body").focus()
    desk.page.keyboard.press("w")
    closer = state(desk, "view")
    assert closer["to"] - closer["from"] == pytest.approx(14 * MS)
    desk.page.keyboard.press("d")
    assert state(desk, "view.from") > closer["from"]
    desk.page.keyboard.press("a")
    assert state(desk, "view.from") == pytest.approx(closer["from"])
    for _ in range(80):
        desk.page.keyboard.press("+")
    assert state(desk, "view.to") - state(desk, "view.from") == pytest.approx(50)
    desk.page.keyboard.press("0")
    assert state(desk, "view") == {"from": 0, "to": 20 * MS}


def test_dragging_moves_and_a_double_click_fits_an_event_or_everything(desk):
    desk.page.evaluate("timeline.timeline.actions.zoom(0.1)")
    box, before = body(desk), state(desk, "view")
    x, y = box["x"] + 400, box["y"] + 10
    desk.page.mouse.move(x, y)
    desk.page.mouse.down()
    desk.page.mouse.move(x - 200, y, steps=4)
    desk.page.mouse.up()
    moved = 200 / box["width"] * (before["to"] - before["from"])
    assert state(desk, "view.from") == pytest.approx(before["from"] + moved, rel=1e-6)
    desk.page.mouse.dblclick(x, box["y"] + 5)  # a lane's heading: no event
    assert state(desk, "view") == {"from": 0, "to": 20 * MS}
    ruler = desk.page.locator(".tl-ruler").bounding_box()
    desk.page.mouse.dblclick(ruler["x"] + ruler["width"] * 0.62, ruler["y"] + 30)
    view = state(desk, "view")
    assert view["from"] < 12 * MS < 13 * MS - 1_000 < view["to"]
    assert view["to"] - view["from"] < 2 * MS


def test_it_finds_a_kernel(desk):
    desk.page.fill(".tl-search", "RARE_")
    until(desk.page, "timeline.timeline.state.found !== null")
    assert desk.page.locator(".tl-count").inner_text() == "1 match"
    desk.page.keyboard.press("Enter")
    settle(desk)
    assert desk.page.locator(".tl-name").inner_text() == "rare_kernel"
    assert "7.971 ms" in desk.page.locator(".tl-panel").inner_text()
    view = state(desk, "view")
    assert view["from"] < 7_971_000 < view["to"]
    assert view["to"] - view["from"] < 2 * MS


def test_matches_are_walked_through_in_order_of_time_and_round(desk):
    desk.page.fill(".tl-search", "memcpy (")  # plain text, whatever a pattern would make of it
    until(desk.page, "timeline.timeline.state.found !== null")
    assert desk.page.locator(".tl-count").inner_text() == "0 matches"
    desk.page.keyboard.press("Enter")
    desk.page.fill(".tl-search", "memcpy")
    until(desk.page, "timeline.timeline.state.found.events.length === 20")
    desk.page.keyboard.press("Enter")
    assert desk.page.locator(".tl-count").inner_text() == "1 of 20"
    desk.page.keyboard.press("Shift+Enter")
    assert desk.page.locator(".tl-count").inner_text() == "20 of 20"
    desk.page.get_by_label("Next match").click()
    assert desk.page.locator(".tl-count").inner_text() == "1 of 20"
    desk.page.locator(".tl-search").focus()
    desk.page.keyboard.press("Escape")
    assert state(desk, "found") is None


def clipped(table: Any, low: float, high: float) -> Any:
    return np.maximum(np.minimum(table.end, high) - np.maximum(table.start, low), 0)


@pytest.mark.parametrize(("low", "high"), [(0, 20 * MS), (3_210_987, 9_876_543), (5_000, 5_100)])
def test_sums_of_a_stretch_are_those_of_numpy(desk, low, high):
    timeline = window()
    sums = desk.page.evaluate(f"timeline.timeline.sums({low}, {high})")
    (device,) = sums["devices"]
    part = clipped(timeline.device, low, high)
    for one in device["names"]:
        own = timeline.device.name == timeline.names.index(one["name"])
        assert one["time"] == part[own].sum()
    assert sum(one["time"] for one in device["names"]) == part.sum()
    assert sum(one["time"] for one in device["categories"]) == part.sum()
    marks = np.zeros(high - low, bool) if high - low < 10 * MS else None
    if marks is not None:
        for start, end in zip(timeline.device.start, timeline.device.end, strict=True):
            marks[max(start - low, 0) : max(end - low, 0)] = True
        assert device["busy"] == marks.sum()
        assert sum(one["time"] for one in device["idle"]) == (~marks).sum()
    host, part = timeline.host, clipped(timeline.host, low, high)
    own_time = part.copy()
    np.subtract.at(own_time, host.parent[host.parent >= 0], part[host.parent >= 0])
    (thread,) = sums["threads"]
    for one in thread["names"]:
        chosen = host.name == timeline.names.index(one["name"])
        assert one["time"] == pytest.approx(own_time[chosen].sum())
    assert sum(one["time"] for one in thread["names"]) == pytest.approx(part[host.parent < 0].sum())


def test_dragging_along_the_ruler_sums_up_a_stretch(desk):
    ruler = desk.page.locator(".tl-ruler").bounding_box()
    desk.page.mouse.move(ruler["x"] + ruler["width"] * 0.2, ruler["y"] + 8)
    desk.page.mouse.down()
    desk.page.mouse.move(ruler["x"] + ruler["width"] * 0.3, ruler["y"] + 8, steps=3)
    desk.page.mouse.up()
    settle(desk)
    low, high = state(desk, "range")
    assert (low, high) == (pytest.approx(4 * MS, rel=0.01), pytest.approx(6 * MS, rel=0.01))
    part = clipped(window().device, low, high).sum()
    text = desk.page.locator(".tl-panel").inner_text()
    assert f"GPU 0 busy {part / (high - low):.0%} ({part / 1e3:.0f} µs)" in text
    assert "own time by name" in text


def test_a_click_tells_of_an_event_and_of_what_it_launched(desk):
    desk.page.evaluate("timeline.timeline.actions.find('cudaLaunch')")
    desk.page.evaluate("timeline.timeline.actions.step(false)")
    settle(desk)
    assert desk.page.locator(".tl-name").inner_text() == "cudaLaunchKernel"
    desk.page.locator(".tl-panel button", has_text="launched").click()
    assert desk.page.locator(".tl-name").inner_text() == "void kernel_0<x>"
    chosen = state(desk, "selected")
    call = desk.page.evaluate(f"timeline.timeline.model.launch[{chosen}]")
    start = "timeline.timeline.model.start"
    assert desk.page.evaluate(f"{start}[{chosen}] - {start}[{call}]") == 5_000
    desk.page.locator(".tl-body").focus()
    desk.page.keyboard.press(".")
    assert state(desk, "selected") == chosen + 1
    desk.page.keyboard.press("Escape")
    assert state(desk, "selected") == -1


def test_what_is_under_the_pointer_is_told(desk):
    ruler = desk.page.locator(".tl-ruler").bounding_box()
    desk.page.mouse.move(ruler["x"] + ruler["width"] * 0.525, ruler["y"] + 30)
    tip = desk.page.locator(".tl-tip")
    tip.wait_for()
    assert "ProfilerStep#10" in tip.inner_text()
    assert "lasts 1.00 ms" in tip.inner_text()
    desk.page.mouse.move(5, 5)
    tip.wait_for(state="hidden")
    assert not tip.is_visible()


def test_a_finding_leads_to_its_place(desk):
    desk.page.evaluate(
        "document.dispatchEvent(new CustomEvent('stepscope:seek',"
        " {detail: {from: 7971000, to: 7989000, search: 'rare_kernel'}}))"
    )
    assert desk.page.locator(".tl-name").inner_text() == "rare_kernel"
    desk.page.evaluate(
        "document.dispatchEvent(new CustomEvent('stepscope:seek',"
        " {detail: {from: 2000000, to: 3000000, search: ''}}))"
    )
    assert state(desk, "range") == [2 * MS, 3 * MS]
    desk.page.evaluate(
        "document.dispatchEvent(new CustomEvent('stepscope:seek',"
        " {detail: {from: null, to: null, search: 'rare_kernel'}}))"
    )
    assert desk.page.locator(".tl-name").inner_text() == "rare_kernel"


def test_a_lane_folds(desk):
    lane = desk.page.get_by_role("button", name="main")
    height = "document.querySelector('.tl-content').offsetHeight"
    before = desk.page.evaluate(height)
    lane.click()
    assert lane.get_attribute("aria-expanded") == "false"
    assert desk.page.evaluate(height) < before
    lane.click()
    assert desk.page.evaluate(height) == before


def test_the_theme_repaints_it(desk):
    sample = "document.querySelector('.tl-body').toDataURL()"
    light = state(desk, "theme.fills[0]")
    before = desk.page.evaluate(sample)
    desk.page.locator('[data-act="theme"]').click()
    settle(desk)
    assert state(desk, "theme.fills[0]") != light
    assert before != desk.page.evaluate(sample)


def test_perfetto_gets_the_trace_or_the_reader_its_name(desk, chromium, tmp_path):
    desk.page.get_by_role("button", name="Open in Perfetto").click()
    assert "window.pt.trace.json.gz" in desk.page.locator(".tl-panel").inner_text()
    with opened(chromium, page_of(tmp_path, encode_timeline(window(), trace=b"trace"))) as seen:
        seen.page.evaluate(
            "window.sent = []; window.open = (where) => (sent.push(where),"
            " {postMessage: (what, to) => sent.push([what, to])}); 0"
        )
        seen.page.get_by_role("button", name="Open in Perfetto").click()
        until(seen.page, "sent.length > 1")
        pong = "new MessageEvent('message', {data: 'PONG', origin: '%s'})"
        seen.page.evaluate(f"dispatchEvent({pong % 'https://elsewhere.example'})")
        assert seen.page.evaluate("sent.every((one) => !one[0].perfetto)")
        seen.page.evaluate(f"dispatchEvent({pong % 'https://ui.perfetto.dev'})")
        assert seen.page.evaluate("sent[0]") == "https://ui.perfetto.dev"
        handed = "[new TextDecoder().decode(sent.at(-1)[0].perfetto.buffer), sent.at(-1)[1]]"
        assert seen.page.evaluate(handed) == ["trace", "https://ui.perfetto.dev"]


def test_hostile_names_are_drawn_as_text_only(chromium, tmp_path):
    made = Handmade()
    made.operator(HOSTILE, 0, 1_000, thread=HOSTILE)
    made.work(100, 900, name=HOSTILE, stream=HOSTILE)
    with opened(chromium, page_of(tmp_path, encode_timeline(made.timeline()))) as seen:
        title = seen.page.title()
        seen.page.fill(".tl-search", "<img")
        until(seen.page, "timeline.timeline.state.found !== null")
        seen.page.keyboard.press("Enter")
        assert "<img src=x onerror=" in seen.page.locator(".tl-name").inner_text()
        box = body(seen)
        seen.page.mouse.move(box["x"] + 300, box["y"] + 30)
        seen.page.evaluate("timeline.timeline.actions.summed(0, 1000)")
        settle(seen)
        assert "</script>" in seen.page.locator(".tl-panel").inner_text()
        assert (
            seen.page.locator("#timeline img, #timeline script, #timeline a, #timeline b b").count()
            == 0
        )
        assert seen.page.title() == title
        assert seen.problems == []
        assert seen.requests == []


def test_a_name_longer_than_is_kept_is_found_by_the_whole_of_it(chromium, tmp_path):
    made = Handmade()
    name = "void " + "kernel<int, " * 100 + ">"
    made.work(0, 100, name=name)
    with opened(chromium, page_of(tmp_path, encode_timeline(made.timeline()))) as seen:
        seek = "(search) => timeline.timeline.actions.seek({from: null, to: null, search})"
        seen.page.evaluate(seek, name)
        assert seen.page.locator(".tl-count").inner_text() == "1 of 1"


def test_merged_events_are_said(chromium, tmp_path):
    with opened(chromium, page_of(tmp_path, encode_timeline(window(), most_events=800))) as seen:
        assert "short ones are merged" in seen.page.locator(".tl-panel").inner_text()
        sums = seen.page.evaluate("timeline.timeline.sums(0, 2e7)")
        total = sum(one["time"] for one in sums["devices"][0]["names"])
        assert total == pytest.approx(window().device.duration.sum())
        assert seen.problems == []


@pytest.mark.parametrize(
    "payload", [encode_timeline(Handmade().timeline())], ids=["nothing recorded"]
)
def test_an_empty_recording_is_no_error(chromium, tmp_path, payload):
    with opened(chromium, page_of(tmp_path, payload)) as seen:
        seen.page.locator(".tl-body").focus()
        seen.page.keyboard.press("w")
        seen.page.evaluate("timeline.timeline.actions.summed(0, 1)")
        assert seen.page.locator(".tl-panel").is_visible()
        assert seen.problems == []


def test_two_fingers_zoom_on_a_phone(chromium, file):
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    with opened(chromium, file, **phone) as seen:
        box = body(seen)
        middle, y = box["x"] + box["width"] / 2, box["y"] + 40
        touch = seen.page.context.new_cdp_session(seen.page)
        for kind, apart in (("touchStart", 30), ("touchMove", 60), ("touchMove", 120)):
            points = [
                {"x": middle - apart, "y": y, "id": 1},
                {"x": middle + apart, "y": y, "id": 2},
            ]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        until(seen.page, "timeline.timeline.state.view.to < 19e6")
        view = state(seen, "view")
        assert view["to"] - view["from"] == pytest.approx(5 * MS, rel=0.05)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 360
        assert seen.problems == []
