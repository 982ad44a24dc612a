"""What tests of reports share."""

from collections.abc import Iterator
from typing import Any

import pytest
from browser import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser; without one the tests that want it are skipped, with the reason."""
    try:
        with browser() as launched:
            yield launched
    except LookupError as reason:
        pytest.skip(str(reason))
