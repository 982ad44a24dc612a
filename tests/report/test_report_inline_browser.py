"""A report framed in a notebook's page: it works there, and reaches nothing around it."""

from dataclasses import replace

from browser import PATIENCE_S, until
from stories import hostile, whole

from stepscope.report.render.html.page import render_page
from stepscope.report.render.notebook.objects import in_iframe


def opened(chromium, tmp_path, story):
    """The frame inside a page, what the console said, and what was asked for."""
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><title>notebook</title>{in_iframe(render_page(story), 600)}")
    context = chromium.new_context()
    context.set_default_timeout(1000 * PATIENCE_S)
    page = context.new_page()
    problems, requests = [], []
    page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("html[data-ready]", state="attached")
    return page, frame, problems, [url for url in requests if not url.startswith("data:")]


def test_its_links_lead_to_its_own_sections(chromium, tmp_path):
    page, frame, problems, requests = opened(chromium, tmp_path, whole())
    frame.click('nav a[href="#findings"]')
    until(frame, "scrollY > 100")
    assert page.url.endswith("notebook.html")
    assert (problems, len(requests)) == ([], 1)


def test_hostile_words_run_nothing_inside_or_around_it(chromium, tmp_path):
    story = hostile(whole())
    page, frame, problems, requests = opened(chromium, tmp_path, replace(story, kind="run"))
    assert (problems, len(requests)) == ([], 1)
    assert page.title() == "notebook"
    assert frame.locator("h1").count() == 1


def test_it_cannot_see_the_page_around_it(chromium, tmp_path):
    _, frame, _, _ = opened(chromium, tmp_path, whole())
    reached = "() => { try { return parent.document.title } catch { return null } }"
    assert frame.evaluate(reached) is None
