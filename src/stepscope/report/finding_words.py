"""What is said of a finding, wherever it is shown. Strangers' text is as it came."""

from typing import Any

from stepscope.report.text import milliseconds, size

Document = dict[str, Any]


def gain(one: Document, step_ms: float) -> str:
    """What it would save of a step; without a prediction, the share it concerns."""
    if one["scope"] == "run":
        return f"{one['share']:.0%} of run"
    predicted = one["predicted"]
    if predicted is not None:
        return f"−{milliseconds(step_ms - predicted['step_ms'])} ms"
    return f"{one['share']:.0%} of step" if one["share"] else ""


def times(predicted: Document) -> str:
    """`1.77× (1.57–2.00)`."""
    span = f"{predicted['low']:.2f}–{predicted['high']:.2f}"
    return f"{predicted['speedup']:.2f}× ({span})"


def evidence(one: Document) -> tuple[str, str]:
    """What was measured, and its value with the unit."""
    what, value, unit = str(one["what"]), one["value"], str(one["unit"])
    if not isinstance(value, str) and unit == "bytes":
        return what, size(value)
    if isinstance(value, str):
        shown = value
    else:
        shown = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    space = "" if not unit or unit.startswith(("%", "×")) else " "
    return what, f"{shown}{space}{unit}"


def fix_name(fix: Document) -> str:
    """As `--fix` takes it."""
    return f"{fix['name']}" + ("" if fix["value"] is None else f"={fix['value']}")


def fix_names(document: Document) -> list[str]:
    """What the headroom rests on, as `--fix` takes it; all fixes where there is no headroom."""
    by = (document.get("headroom") or {}).get("by") or ()
    found = document.get("findings") or []
    chosen = [one for one in found if one["id"] in by] or found
    return [fix_name(one["fix"]) for one in chosen if one["fix"] is not None]


def fixing(names: list[str]) -> str:
    """The command that applies fixes, up to the program."""
    return " ".join(["stepscope run", *(f"--fix {name}" for name in names)])


def answered(baseline: list[Document]) -> list[Document]:
    """Answers with a number, and those that were not given in the same words before."""
    told: set[str] = set()
    shown = []
    for one in baseline:
        if one["value"] is not None or one["answer"] not in told:
            shown.append(one)
        told.add(one["answer"])
    return shown
