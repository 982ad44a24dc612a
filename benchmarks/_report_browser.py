"""A report in a real Chromium: when it can be used, and how long its timeline's frames take."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FRAMES = 60  # in one direction
_WIDTH, _HEIGHT = 1280, 900

# From the start of the navigation until the timeline is there, and until the page says that
# everything in it works: charts on the screen are drawn by then.
_WATCH = """
new MutationObserver(() => {
  if (document.querySelector(".tl-body")) window.timelineMs ??= performance.now();
  if (document.documentElement?.dataset.ready) window.readyMs ??= performance.now();
}).observe(document, { attributes: true, subtree: true, childList: true });
"""

_TIMES = """({
  first_paint_ms: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
  timeline_ms: timelineMs,
  interactive_ms: readyMs,
})"""

# A reader who zooms in as far as events are wide, and out again: a step for every frame.
_ZOOM = """
async (frames) => {
  const { state, actions } = document.getElementById("timeline").timeline;
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const [intervals, draws] = [[], []];
  let last = await next();
  for (let frame = 0; frame < 2 * frames; frame++) {
    actions.zoom(frame < frames ? 0.88 : 1 / 0.88, state.width * (0.3 + 0.4 * (frame % 7) / 7));
    await next(); // The drawing was asked for before this: it is done.
    const now = performance.now();
    intervals.push(now - last);
    draws.push(state.frameMs);
    last = now;
  }
  return { intervals, draws };
}
"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser. STEPSCOPE_CHROMIUM names one; else PATH's or Playwright's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        named = os.environ.get("STEPSCOPE_CHROMIUM")
        found = (
            shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)
        )
        launched = playwright.chromium.launch(
            executable_path=found or playwright.chromium.executable_path,
            args=["--no-sandbox", "--disable-gpu"],
        )
        try:
            yield launched
        finally:
            launched.close()


def visit(browser: Any, file: Path) -> dict[str, Any]:
    """One visit of a page that nothing is cached for; times in milliseconds."""
    context = browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})
    try:
        page = context.new_page()
        page.add_init_script(_WATCH)
        page.goto(file.resolve().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        times: dict[str, Any] = page.evaluate(_TIMES)
        if page.locator(".chart").count():  # The charts below the screen are drawn meanwhile.
            page.wait_for_selector("html[data-charts]", state="attached", timeout=60_000)
        page.locator("#timeline").scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        frames = page.evaluate(_ZOOM, _FRAMES)
        return {**times, **frames}
    finally:
        context.close()
