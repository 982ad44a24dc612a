"""Escapes strangers' text for the page: nothing in it becomes markup, style or script."""

import html
import json
from typing import Any

from stepscope.report.text import one_line

_IN_JSON = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def escape_text(value: str) -> str:
    """For text between tags. Control and bidirectional characters are made visible."""
    return html.escape(one_line(value), quote=False)


def escape_attribute(value: str) -> str:
    """For a double-quoted attribute that is neither a URL nor a handler."""
    return html.escape(one_line(value), quote=True)


def escape_code(value: str) -> str:
    """For code between tags, keeping lines and indentation."""
    return "\n".join(escape_text(line.expandtabs(4)) for line in value.splitlines())


def json_for_script(value: Any) -> str:
    """JSON for a data script element, which it cannot close or reopen.

    Raises ValueError on NaN: such values must already be None.
    """
    dumped = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return dumped.translate(_IN_JSON)


def escape_label(value: str) -> str:
    """For plotly, which interprets some tags, entities and templates in labels."""
    plain = one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("%{", "% {")
