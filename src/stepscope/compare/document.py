"""Two sides against each other as one document, with the notes needed to trust it and the exit code
a pipeline gets.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stepscope.compare.items import Side
from stepscope.compare.kernels import compare_kernels, typical_step
from stepscope.compare.quantities import compare_losses, idle_rows, phase_rows, resource_rows
from stepscope.compare.settings import environment_differences, setting_differences
from stepscope.compare.verdicts import Pair, StoredFloor, decisive_item, judge_pair, pair_items
from stepscope.compare.why import why_sentences
from stepscope.record.errors import UsageError


def comparison_notes(
    base: Sequence[Side], other: Sequence[Side], chosen: Mapping[str, Any]
) -> list[str]:
    """A line each, the first on processes and noise. `chosen` is the item that speaks for all."""
    sides = (*base, *other)
    return [
        f"{_counted(chosen)}; {chosen['noise_floor_from']}",
        *_samples(chosen),
        *_kinds(sides),
        *_recorded(sides),
        *_phases(sides),
        *_machine(sides),
    ]


def _counted(item: Mapping[str, Any]) -> str:
    """`one process a side, 180 and 180 steps`."""
    ours, theirs = item["base_processes"], item["other_processes"]
    steps = f"{item['base_steps']:,} and {item['other_steps']:,} steps"
    many = "one process a side" if ours == theirs == 1 else f"{ours} and {theirs} processes"
    return f"{many}, {steps}"


def _samples(item: Mapping[str, Any]) -> Iterator[str]:
    if item["per"] == "sample":
        a, b = item["base_samples"], item["other_samples"]
        yield f"{a:.4g} samples a step against {b:.4g}: times of a sample are compared"


def _kinds(sides: Sequence[Side]) -> Iterator[str]:
    kinds = sorted({side.kind for side in sides})
    if len(kinds) > 1:
        yield f"different kinds of results: {' and '.join(kinds)}"


def _recorded(sides: Sequence[Side]) -> Iterator[str]:
    traces = [side.document["steps"] for side in sides if side.kind == "trace"]
    if traces:
        yield "times are of recorded steps, which recording makes longer"
    if any(steps.get("how") == "whole" for steps in traces):
        yield "no steps were found in a recording: it counts as a single one"


def _phases(sides: Sequence[Side]) -> Iterator[str]:
    seen = {side.document.get("phases_seen_by") for side in sides if side.kind == "run"}
    if len(seen) > 1:
        yield "phases are the host's in some runs and the device's in others"


def _machine(sides: Sequence[Side]) -> Iterator[str]:
    """What disturbed a run, each said once with the runs it befell."""
    befell: dict[str, list[str]] = {}
    for side in sides:
        if side.kind == "run":
            for trouble in _troubles(side.document):
                befell.setdefault(trouble, []).append(side.name)
    for trouble, names in befell.items():
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        yield f"{trouble}: {', '.join(names[:2])}{rest}"


def _troubles(document: Mapping[str, Any]) -> Iterator[str]:
    gpu = document.get("gpu") or {}
    cpu = (document["config"].get("machine") or {}).get("cpu") or {}
    for reason in gpu.get("throttled_by") or ():
        yield f"clocks were held down by {reason}"
    if gpu.get("other_processes"):
        yield "other processes used the GPU"
    load, cores = (cpu.get("load_average") or [0.0])[0], cpu.get("usable_cores")
    if cores and load > cores:
        yield "the processor had other work"


FINE: Final = 0
REGRESSION: Final = 1
UNCLEAR: Final = 3


def parse_limit(text: str) -> float:
    """`5%` or `0.05`: the share a step may take longer. Raises UsageError."""
    wrong = UsageError(f"--max-regression takes a share such as 5% or 0.05, not {text!r}")
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        raise wrong from None
    if rest or not 0 <= value < 1:
        raise wrong
    return value


def exit_code(items: Sequence[dict[str, Any]], most: float | None, strict: bool) -> int:
    """1 where a step certainly takes longer than the limit allows, by the near end of its
    interval; 3 where `strict` and something is unclear."""
    if most is not None and any(item["low"] > most for item in items):
        return REGRESSION
    if strict and any(item["verdict"] == "UNCLEAR" for item in items):
        return UNCLEAR
    return FINE


SCHEMA = "stepscope.compare/1"
Document = dict[str, Any]


def compare_results(
    base: Sequence[Side],
    other: Sequence[Side],
    stored: StoredFloor = lambda item: None,
    max_regression: float | None = None,
    strict: bool = False,
) -> Document:
    """The verdict, what changed and why. `max_regression` is a share of the time of a step.

    Raises UsageError where the two cannot be compared.
    """
    pairs, left_out = pair_items(base, other)
    traced = any(side.kind == "trace" for side in (*base, *other))
    items = [judge_pair(pair, stored, traced, len(pairs)) for pair in pairs]
    chosen = decisive_item(items)
    claimed = chosen["verdict"] in ("FASTER", "SLOWER")
    scale = _scale(pairs[0]) if len(pairs) == 1 else 1.0
    changed = setting_differences(base, other)
    surroundings, same = environment_differences(base, other)
    parts = phase_rows(base, other, scale)
    waits = idle_rows(base, other, scale)
    kernels = _kernels(base, other)
    return {
        "schema": SCHEMA,
        "base": _side(base),
        "other": _side(other),
        **{name: chosen[name] for name in ("verdict", "change", "low", "high", "per", "label")},
        "max_regression": max_regression,
        "strict": strict,
        "exit_code": exit_code(items, max_regression, strict),
        "items": items,
        "left_out": left_out,
        "phases": parts,
        "scale": scale,
        "kernels": kernels,
        "idle": waits,
        "amounts": resource_rows(base, other),
        "configuration": changed,
        "environment": surroundings,
        "environment_same": same,
        "losses": compare_losses(_losses(base), _losses(other)),
        "why": why_sentences(parts, kernels, changed, waits, claimed) if len(pairs) == 1 else [],
        "notes": comparison_notes(base, other, chosen),
    }


def _side(sides: Sequence[Side]) -> Document:
    return {"kind": sides[0].kind, "names": [side.name for side in sides]}


def _scale(pair: Pair) -> float:
    """What brings the other's steps to the samples of the base's; 1 where they have as many."""
    if not pair.by_sample:
        return 1.0
    return float((pair.base.samples or 1.0) / (pair.other.samples or 1.0))


def _kernels(base: Sequence[Side], other: Sequence[Side]) -> Document | None:
    """By the first result of each side; None where one has no window."""
    ours, theirs = base[0].timeline(), other[0].timeline()
    if ours is None or theirs is None:
        return None
    return compare_kernels(
        typical_step(ours, base[0].stacks()), typical_step(theirs, other[0].stacks())
    )


def _losses(sides: Sequence[Side]) -> list[list[float | None]]:
    found = []
    for side in sides:
        if side.kind == "run":
            found.append(list(side.document["losses"]))
        elif side.kind == "tune":
            found.append(list((side.document.get("baseline") or {}).get("losses") or ()))
    return found
