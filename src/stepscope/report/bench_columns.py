"""The columns of benchmark tables: a heading, and what it says of a point."""

from collections.abc import Callable
from typing import Any, NamedTuple

from stepscope.report.text import milliseconds, safe, seconds, size

Document = dict[str, Any]


class Column(NamedTuple):
    """`cell` gives None where a point has no such value; a column without any is left out."""

    heading: str
    cell: Callable[[Document], str | None]


def number(value: float) -> str:
    """Three significant digits, for what may be very small."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def spread(point: Document) -> str | None:
    """Half of the mean's 95% interval, as a share of it; None where it is not known."""
    mean, low, high = (point.get(key) for key in ("mean_ms", "mean_low_ms", "mean_high_ms"))
    if not mean or low is None or high is None:
        return None
    share = (high - low) / 2 / mean
    if share >= 1:
        return "±>100%"
    return f"±{share:.1%}" if share < 0.0995 else f"±{share:.0%}"


def speedup(point: Document) -> str | None:
    """`2.31× faster`; None for what others are compared with."""
    found = point.get("speedup")
    return f"{found['ratio']:.2f}× {found['verdict'].lower()}" if found else None


def interval(low: float | None, high: float | None) -> str:
    """`2.25–2.38`; empty where there is none."""
    return f"{low:.2f}–{high:.2f}" if low is not None and high is not None else ""


def floor_words(floor: float) -> str:
    """The noise floor in a sentence."""
    share = f"{floor:.1%}" if floor < 1 else "above 100%"
    return f"noise floor {share}: what differs by less is not told apart"


def _value(key: str, show: Callable[[Any], str]) -> Callable[[Document], str | None]:
    def cell(point: Document) -> str | None:
        value = point.get(key)
        return None if value is None else show(value)

    return cell


def _column(heading: str, key: str, show: Callable[[Any], str] = milliseconds) -> Column:
    return Column(heading, _value(key, show))


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.095 else f"{value:.1%}"


_SAMPLES = _column("samples/s", "samples_per_s")
_INTERVAL = Column("±", spread)

SPEED = {
    "train": [
        _SAMPLES,
        _column("step ms", "mean_ms"),
        _INTERVAL,
        _column("p95", "p95_ms"),
    ],
    "infer": [
        _SAMPLES,
        _column("mean ms", "mean_ms"),
        _INTERVAL,
        _column("p50", "p50_ms"),
        _column("p95", "p95_ms"),
        _column("p99", "p99_ms"),
    ],
    "generate": [
        _column("tokens/s", "tokens_per_s"),
        _column("first token ms", "first_token_ms"),
        _column("token ms", "token_ms"),
        _INTERVAL,
    ],
}


def learning(points: list[Document]) -> list[Column]:
    """What training came to, the score under its own name."""
    names = {point.get("score_name") for point in points if point.get("score_name")}
    score = safe(str(names.pop())).replace("_", " ") if len(names) == 1 else "score"
    return [
        _column("steps", "steps", lambda value: f"{value:,}"),
        _column("loss", "loss", lambda value: f"{value:.4g}"),
        _column(score, "score", lambda value: f"{value:.4f}"),
        _column("epoch", "epoch_s", seconds),
        _column("to the score", "time_to_score_s", seconds),
    ]


COST = [
    _column("memory", "peak_memory_bytes", size),
    _column("GPU busy", "gpu_busy", _share),
    _column("GFLOP/s", "tflops_per_s", lambda value: number(value * 1e3)),
    _column("MFU", "mfu", _share),
    _column("J/sample", "energy_j_per_sample", number),
    _column("gCO2/M", "carbon_g_per_million", number),
    _column("cost/M", "cost_per_million", number),
    _column("first calls", "first_calls_s", seconds),
]

PERCENTILES = {"train": [_column("p50", "p50_ms"), _column("p99", "p99_ms")]}

EXTRA = [
    _column("std ms", "std_ms"),
    _column("batches/s", "batches_per_s"),
    _column("GFLOP/sample", "flops_per_sample", lambda value: number(value / 1e9)),
    _column("arithmetic", "arithmetic", safe),
    _column("clock", "clock", safe),
    _column("processes", "rounds", str),
]

SPEEDUP = Column("speedup", speedup)


def used(columns: list[Column], points: list[Document]) -> list[Column]:
    """Those that have a value for one of the points."""
    return [column for column in columns if any(column.cell(point) is not None for point in points)]
