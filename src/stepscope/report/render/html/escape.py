"""Strangers' text on its way into the page: nothing in it becomes markup, style or script."""

import html
import json
import re
from typing import Any

from stepscope.report.text import one_line

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]+")
_IN_JSON = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def escape_text(value: str) -> str:
    """Between tags. Control characters and what turns the writing direction are made visible."""
    return html.escape(one_line(value), quote=False)


def escape_attribute(value: str) -> str:
    """Between double quotes of an attribute that is neither an address nor a handler."""
    return html.escape(one_line(value), quote=True)


def escape_code(value: str) -> str:
    """Between tags, lines and indentation kept."""
    return "\n".join(escape_text(line.expandtabs(4)) for line in value.splitlines())


def html_id(value: str) -> str:
    """An id, fit for an attribute and for an address's fragment."""
    return _NOT_IN_IDS.sub("-", value).strip("-") or "x"


def json_for_script(value: Any) -> str:
    """JSON inside a script element that holds data: it cannot end the element or open another.

    Raises ValueError on NaN: such values are None by then.
    """
    dumped = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return dumped.translate(_IN_JSON)


def escape_label(value: str) -> str:
    """For the chart library, which reads a few tags, entities and templates in any label."""
    plain = one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("%{", "% {")
