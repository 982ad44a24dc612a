"""A comparison in words, the same for every format. Strangers' text is left as it is."""

from collections.abc import Sequence
from typing import Any

from stepscope.report.text import milliseconds, size

Document = dict[str, Any]
_CHIEF = ("GPU", "driver", "processor", "torch", "Python")
_MOST = 10.0  # beyond, nobody counts
_STATES = {"identical": "losses identical", "close": "losses match"}


def headline(document: Document) -> str:
    """`+6.2% per step (5.1–7.4%, 95%)`; of several points that it is one of them."""
    count = len(document["items"])
    of = f", one of {count}" if count > 1 else ""
    return f"{change(document)} per {document['per']} ({interval(document)}, 95%){of}"


def names(side: Document) -> str:
    """`main`, or `main/1 and 4 more`."""
    first, *rest = side["names"]
    return f"{first} and {len(rest)} more" if rest else str(first)


def sentence(document: Document) -> str:
    """The verdict in one sentence."""
    return f"{document['verdict']}: {headline(document)}"


def change(item: Document) -> str:
    """`+6.2%`: of the time of a step or sample."""
    return _percent(item["change"])


def interval(item: Document) -> str:
    """`5.1–7.4%`, without signs where both ends have that of the change."""
    low, high = sorted((item["low"], item["high"]), key=abs)
    if low * high > 0 and abs(high) <= _MOST:
        return f"{_size(low).removesuffix('%')}–{_size(high)}"
    return f"{_percent(item['low'])} to {_percent(item['high'])}"


def gate(document: Document) -> str:
    """`limit 5% → exit 1`; what the exit code is, and why."""
    code, limit = document["exit_code"], document["max_regression"]
    if limit is None:
        return f"strict → exit {code}" if document["strict"] else "no limit → exit 0"
    return f"limit {limit * 100:.3g}% → exit {code}"


def speeds(item: Document) -> str:
    """`63.1 → 67.0 ms a step, 507 → 477 samples/s`."""
    told = f"{milliseconds(item['base_ms'])} → {milliseconds(item['other_ms'])} ms a step"
    ours, theirs = item["base_samples_per_s"], item["other_samples_per_s"]
    return told if not (ours and theirs) else f"{told}, {ours:,.0f} → {theirs:,.0f} samples/s"


def facts(document: Document) -> list[str]:
    """`memory +0.4 GiB`, `losses match`, `same GPU, driver, torch`: short, for one line."""
    found = [text for one in document["amounts"] if (text := amount(one))]
    if text := losses(document["losses"]):
        found.append(text)
    same = [name for name in _CHIEF if name in document["environment_same"]]
    return [*found, f"same {', '.join(same)}"] if same else found


def amount(one: Document) -> str | None:
    """What changed, and by how much; None where it hardly did."""
    base, other, name = one["base"], one["other"], one["name"]
    if abs(other - base) <= 0.01 * max(abs(base), abs(other)):
        return f"{name} the same" if name == "peak memory" else None
    if one["unit"] == "bytes":
        return f"{name} {'−' if other < base else '+'}{size(abs(other - base))}"
    if one["unit"] == "share":
        return f"{name} {base:.0%} → {other:.0%}"
    unit = f" {one['unit']}" if one["unit"] else ""
    if not unit:
        return f"{name} {base:,.0f} → {other:,.0f}"
    return f"{name} {base:,.3g} → {other:,.3g}{unit}"


def losses(found: Document | None) -> str | None:
    """None where neither side computed any."""
    if found is None:
        return None
    if found["state"] != "differ":
        return _STATES[found["state"]]
    told = f"losses differ from step {found['step']}"
    return f"{told}, as they do between runs of one side" if found["control"] == "differ" else told


def differences(rows: Sequence[Document]) -> list[str]:
    """`loader num_workers 4 → 0`."""
    return [f"{one['what']} {value(one['base'])} → {value(one['other'])}" for one in rows]


def value(one: Any) -> str:
    """A setting as text."""
    return "none" if one is None else str(one)


def unclear(document: Document) -> str | None:
    """What would make it clear; None where it is."""
    if document["verdict"] != "UNCLEAR":
        return None
    item = next(one for one in document["items"] if one["verdict"] == "UNCLEAR")
    few = min(item["base_processes"], item["other_processes"])
    if document["base"]["kind"] != "run" or few >= 10:
        return "more processes a side would tell"
    return f"more runs would tell: stepscope run --repeat {max(3, 2 * few)} … for each side"


def _percent(share: float) -> str:
    sign = "−" if share < 0 else "+"
    return f"over {sign}{_MOST:,.0%}" if abs(share) > _MOST else f"{sign}{_size(share)}"


def _size(share: float) -> str:
    """Without its sign."""
    value = min(abs(share), _MOST)
    return f"{value:.1%}" if value < 1 else f"{value:,.0%}"
