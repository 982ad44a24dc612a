"""Strangers' text and numbers, made fit for a terminal."""

import os
import re

_LONGEST_PLACE = 28
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """Text without control characters: nothing in it can move the cursor or recolour the screen."""
    return _CONTROL.sub("·", text)


def place(file: str | None, line: int | None) -> str:
    """`train.py:31`: relative to here when below, else the last two parts;
    a library's from its package on."""
    if not file:
        return ""
    shown = os.path.relpath(file) if os.path.isabs(file) else file
    for packages in ("site-packages", "dist-packages"):
        if packages in file:
            shown = file.rpartition(packages + os.sep)[2]
    if shown.startswith(".."):
        shown = os.sep.join(file.split(os.sep)[-2:])
    return shortened(safe(f"{shown}:{line}"), _LONGEST_PLACE)


def shortened(text: str, most: int) -> str:
    """Text of at most that length, its end kept: paths tell most there."""
    return text if len(text) <= most else "…" + text[1 - most :]


def milliseconds(value: float) -> str:
    """Three significant digits at most: `63.1`, `1,240`, `0.82`."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def seconds(value: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(value: float) -> str:
    """`3.1 GiB`, `12 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(count: int, noun: str) -> str:
    """`1 step`, `412 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
