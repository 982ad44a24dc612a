"""A real headless Chromium, where this machine has one, and what a page did in it."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 240  # for a page that hangs; what a busy machine takes is not a failure
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def chromium() -> str | None:
    """Its path; None where there is none. STEPSCOPE_CHROMIUM names one."""
    named = os.environ.get("STEPSCOPE_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((found for found in map(shutil.which, NAMES) if found), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A browser of Playwright's sync API. Raises LookupError, with the way out, without one."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise LookupError("no browser tests: playwright is not installed") from None
    with sync_playwright() as playwright:
        path = chromium() or playwright.chromium.executable_path
        if not Path(path).is_file():
            raise LookupError(
                "no browser tests: no Chromium on PATH; install the package chromium,"
                " run `playwright install chromium`, or set STEPSCOPE_CHROMIUM"
            )
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield launched
        finally:
            launched.close()


@dataclass
class Seen:
    """What a page did since it was opened."""

    page: Any
    problems: list[str] = field(default_factory=list)
    """Errors and warnings of the console, uncaught errors, dialogs, windows."""
    requests: list[str] = field(default_factory=list)
    """Addresses other than the page's own file and data inside it."""


@contextmanager
def opened(browser: Any, file: Path, before: str = "", **options: Any) -> Iterator[Seen]:
    """A report in a page of its own, once it is ready. Nothing it asks for is let through.

    `before` is a script that runs before those of the page.
    """
    usual = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
    context = browser.new_context(**usual | options)
    context.set_default_timeout(1000 * PATIENCE_S)
    page = context.new_page()
    seen = Seen(page)
    address = file.resolve().as_uri()

    def route(one: Any) -> None:
        if one.request.url.split("#")[0] == address:
            one.continue_()
        else:
            seen.requests.append(one.request.url)
            one.abort()

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            seen.problems.append(f"{message.type}: {message.text}")

    def asked(dialog: Any) -> None:
        seen.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    context.route("**/*", route)
    page.on("console", said)
    page.on("pageerror", lambda error: seen.problems.append(f"uncaught: {error}"))
    page.on("dialog", asked)
    page.on("popup", lambda popup: seen.problems.append(f"window: {popup.url}"))
    if before:
        page.add_init_script(before)
    try:
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        yield seen
    finally:
        context.close()


def until(frame: Any, condition: str) -> None:
    """Ask from outside: the page's policy lets nothing be evaluated inside it."""
    end = time.monotonic() + PATIENCE_S
    while not frame.evaluate(condition):
        assert time.monotonic() < end, f"never: {condition}"
        time.sleep(0.02)
