"""A recorded trace as a whole page in a browser: its timeline, and strangers' names in it."""

import gzip
import json
from pathlib import Path
from typing import Any

from browser import opened
from plain import TRACES
from stories import HOSTILE

from stepscope.report.render.html.page import render_page
from stepscope.report.render.html.timeline import encode_timeline
from stepscope.report.story.narrator import story_of
from stepscope.results.load import load

RECORDED = TRACES / "resnet18_b32_h200.json.gz"
HOSTILE_NAME = HOSTILE.encode("utf-8", "replace").decode()


def page_of(trace: Path, file: Path) -> Path:
    subject = load(str(trace), trace.parent)
    timeline = subject.timeline
    assert timeline is not None
    file.write_text(render_page(story_of(subject), encode_timeline(timeline)), encoding="utf-8")
    return file


def made_hostile(trace: Path, file: Path) -> Path:
    """Markup in the names of all operators, kernels, functions, threads, processes and devices."""
    document = json.loads(gzip.decompress(trace.read_bytes()))
    for event in document["traceEvents"]:
        if event.get("cat") in ("cpu_op", "kernel", "python_function", "gpu_memcpy", "ac2g"):
            event["name"] = event["name"] + HOSTILE_NAME
        if event.get("ph") == "M" and "name" in event.get("args", {}):
            event["args"]["name"] = HOSTILE_NAME
    for device in document.get("deviceProperties", []):
        device["name"] = HOSTILE_NAME
    file.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return file


def view(seen: Any) -> tuple[float, float]:
    state = seen.page.evaluate("(({ from, to }) => [from, to])(timeline.timeline.state.view)")
    return float(state[0]), float(state[1])


def test_a_finding_leads_to_its_place_in_the_recorded_window(chromium: Any, tmp_path: Path) -> None:
    with opened(chromium, page_of(RECORDED, tmp_path / "report.html")) as seen:
        whole = view(seen)
        seen.page.locator('[data-act="seek"]').first.click()
        seen.page.wait_for_timeout(50)
        near = view(seen)
        top = seen.page.locator("#timeline").bounding_box()["y"]
        assert seen.problems == []
        assert seen.requests == []
    assert near[1] - near[0] < whole[1] - whole[0]
    assert -400 < top < 900


def test_a_hostile_trace_runs_nothing(chromium: Any, tmp_path: Path) -> None:
    trace = made_hostile(RECORDED, tmp_path / "<b>x.json.gz")
    with opened(chromium, page_of(trace, tmp_path / "report.html")) as seen:
        seen.page.wait_for_selector("html[data-charts]", state="attached", timeout=30_000)
        seen.page.locator("#timeline input[type=search]").fill("onerror")
        seen.page.locator("#timeline input[type=search]").press("Enter")
        seen.page.locator("#timeline canvas").last.hover()
        for button in seen.page.locator('[data-act="seek"]').all():
            button.click()
        seen.page.locator("#table-kernels th button").first.click()
        title = seen.page.title()
        foreign = seen.page.locator("main img, main iframe, main style, main b b").count()
        links = seen.page.evaluate(
            "[...document.querySelectorAll('a')].map(a => a.getAttribute('href') ??"
            " a.getAttribute('xlink:href')).filter(href => href && href[0] !== '#')"
        )
        named = seen.page.locator("#table-kernels tbody").inner_text()
        assert seen.problems == []
        assert seen.requests == []
    assert title != "run"
    assert foreign == 0
    assert links == []
    assert "<img src=x onerror=" in named
