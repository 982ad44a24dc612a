"""Whether what a folder was made for is what is asked for now."""

import json
from collections.abc import Mapping
from typing import Any

_LONGEST = 60


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first thing in which `now` differs from what was written, in a few words; None if in
    nothing."""
    for name, value in json.loads(json.dumps(now)).items():
        if then.get(name) != value:
            return f"{name}: {_short(then.get(name))}, now {_short(value)}"
    return None


def _short(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(str(v["label"]) if isinstance(v, dict) else str(v) for v in value)
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
