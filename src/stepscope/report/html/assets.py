"""The page's own styles and scripts, and the chart library, as text with their hashes."""

import base64
import gzip
import hashlib
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from stepscope.record.errors import MissingExtra

_ASSETS = files("stepscope.report.html").joinpath("assets")


def asset(name: str) -> str:
    """One of our own files."""
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def assets(start: str, ending: str) -> list[str]:
    """All of our own files named so, in the order of their names."""
    names = sorted(one.name for one in _ASSETS.iterdir())
    return [asset(name) for name in names if name.startswith(start) and name.endswith(ending)]


def source_hash(text: str) -> str:
    """How a Content-Security-Policy names an inline script or style."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def packed(data: bytes) -> str:
    """Bytes as they stand in the page."""
    return base64.b64encode(data).decode("ascii")


@cache
def chart_library() -> tuple[str, str]:
    """Plotly, gzipped and packed, and the hash of its text. Raises MissingExtra without plotly."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("plotly", "report", "an HTML report")
    file = Path(next(iter(spec.submodule_search_locations)), "package_data", "plotly.min.js")
    if not file.is_file():
        raise MissingExtra("plotly", "report", "an HTML report")
    text = file.read_bytes()
    hashed = source_hash(text.decode("utf-8"))
    return packed(gzip.compress(text, 9, mtime=0)), hashed
