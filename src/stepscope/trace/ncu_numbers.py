"""Numbers and units as Nsight Compute prints them, in any locale."""

import math
import re
from collections.abc import Iterable

_GROUPS = {
    "decimal point": re.compile(r"[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?"),
    "decimal comma": re.compile(r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?([eE][+-]?\d+)?"),
}
_SPACES = str.maketrans("", "", " \u00a0\u202f\u2009'’")  # other locales' thousands marks
_NUMBER = re.compile(r"[+-]?\d[\d.,]*([eE][+-]?\d+)?")
_TIMES_NS = {
    "ns": 1.0,
    "nsecond": 1.0,
    "us": 1e3,
    "usecond": 1e3,
    "ms": 1e6,
    "msecond": 1e6,
    "s": 1e9,
    "second": 1e9,
}
_PREFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_COUNTED = {"byte", "inst", "hz", "cycle", "sector", "request", "thread", "warp", "block", "ops"}


def has_decimal_comma(cells: Iterable[str], default: bool) -> bool:
    """Whether `,` marks decimals in a file, by what its numbers can only mean.

    Most say nothing ("1,234"); "62,50" and "1.234,5" do. `default` where none does.
    """
    votes = 0
    for cell in cells:
        text = cell.translate(_SPACES)
        if not _NUMBER.fullmatch(text):
            continue
        point = bool(_GROUPS["decimal point"].fullmatch(text))
        comma = bool(_GROUPS["decimal comma"].fullmatch(text))
        votes += comma - point
    return votes > 0 if votes else default


def number(cell: str, decimal_comma: bool) -> float | None:
    """The number in a cell, None where there is none or it is too large."""
    text = cell.translate(_SPACES)
    if not _GROUPS["decimal comma" if decimal_comma else "decimal point"].fullmatch(text):
        return None
    thousands, decimal = (".", ",") if decimal_comma else (",", ".")
    value = float(text.replace(thousands, "").replace(decimal, "."))
    return value if math.isfinite(value) else None


def scale(unit: str) -> float:
    """What to multiply by for bytes, counts, ns, and each per second: 1e9 for "Gbyte/second"."""
    above, _, below = unit.partition("/")
    if above in _TIMES_NS:
        return _TIMES_NS[above]
    factor = _prefix(above)
    if below in _TIMES_NS:
        return factor * 1e9 / _TIMES_NS[below]
    return factor / _prefix(below)


def _prefix(unit: str) -> float:
    lower = unit.lower()
    return _PREFIXES.get(lower[:1], 1.0) if lower[1:] in _COUNTED else 1.0
