"""Says which Chromium the browser tests will use; installs Playwright's where there is none."""

import subprocess
import sys

from browser import browser

INSTALL_S = 120


def main() -> None:
    """Never fails: without a browser those tests are skipped, and this says so."""
    try:
        say = opened()
    except LookupError as without:
        print(f"{without}; trying `playwright install chromium`", flush=True)
        install()
        try:
            say = opened()
        except LookupError as problem:
            say = f"{problem}: they are SKIPPED"
    print(say, flush=True)


def opened() -> str:
    """The browser that starts."""
    with browser() as found:
        return f"browser tests use Chromium {found.version}"


def install() -> None:
    """What comes of it is seen by starting it."""
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    try:
        subprocess.run(command, timeout=INSTALL_S, check=False, capture_output=True)
    except subprocess.TimeoutExpired:
        print(f"that took longer than {INSTALL_S} s", flush=True)


if __name__ == "__main__":
    main()
