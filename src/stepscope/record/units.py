"""Numbers with units as people read them: one formatter for every layer."""

from collections.abc import Iterable


def format_number(value: float) -> str:
    """Three significant digits at most: `63.1`, `1,240`, `0.82`, `−0.4`."""
    if value < 0:
        return f"−{format_number(-value)}"
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def format_signed(value: float) -> str:
    """With a sign: `+3.9`, `−0.42`."""
    return f"+{format_number(value)}" if value >= 0 else format_number(value)


def format_duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_bytes(value: float) -> str:
    """`3.1 GiB`, `12 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def memory_unit(values: Iterable[float | None]) -> tuple[float, str]:
    """The divisor and name of the unit that suits the largest of some byte counts."""
    most = max((value for value in values if value is not None and value == value), default=0.0)
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024.0**power:
            return 1024.0**power, name
    return 1.0, "bytes"


def format_rate(value: float, unit: str) -> str:
    """`495 TFLOP/s`, `4.8 TB/s`."""
    for power, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= power:
            return f"{value / power:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"


def format_share(share: float) -> str:
    """A share (0 to 1) in percent: `61%`."""
    return f"{share:.0%}"


def format_speedup(ratio: float) -> str:
    """`2.70×`."""
    return f"{ratio:.2f}×"


_TELLS = 10.0  # times its low end: an interval that reaches farther says nothing


def format_interval(low: float, high: float) -> str:
    """`1.57–2.00` of a ratio; `too noisy to tell` where it may be anything."""
    return f"{low:.2f}–{high:.2f}" if interval_tells(low, high) else "too noisy to tell"


def interval_tells(low: float, high: float) -> bool:
    """Whether the interval of a ratio says anything."""
    return low > 0 and high <= _TELLS * low


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 step`, `412 steps`; `nouns` for irregular plurals."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def capitalized(text: str) -> str:
    """With a capital first letter, the rest unchanged."""
    return text[:1].upper() + text[1:]
