"""Two sides against each other, as one document: what `compare --json` prints."""

from collections.abc import Sequence
from typing import Any

from stepscope.compare.amounts import amounts
from stepscope.compare.floors import Stored
from stepscope.compare.gate import exit_code
from stepscope.compare.kernels import compared
from stepscope.compare.losses import losses
from stepscope.compare.notes import notes
from stepscope.compare.pairing import paired
from stepscope.compare.phases import idle, phases
from stepscope.compare.settings import configuration, environment
from stepscope.compare.sides import Side
from stepscope.compare.verdicts import Pair, judged, overall
from stepscope.compare.why import sentences
from stepscope.compare.work import recorded

SCHEMA = "stepscope.compare/1"
Document = dict[str, Any]


def compare(
    base: Sequence[Side],
    other: Sequence[Side],
    stored: Stored = lambda item: None,
    max_regression: float | None = None,
    strict: bool = False,
) -> Document:
    """The verdict, what changed and why. `max_regression` is a share of the time of a step.

    Raises UsageError where the two cannot be compared.
    """
    pairs, left_out = paired(base, other)
    traced = any(side.kind == "trace" for side in (*base, *other))
    items = [judged(pair, stored, traced, len(pairs)) for pair in pairs]
    chosen = overall(items)
    claimed = chosen["verdict"] in ("FASTER", "SLOWER")
    scale = _scale(pairs[0]) if len(pairs) == 1 else 1.0
    changed = configuration(base, other)
    surroundings, same = environment(base, other)
    parts = phases(base, other, scale)
    waits = idle(base, other, scale)
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
        "amounts": amounts(base, other),
        "configuration": changed,
        "environment": surroundings,
        "environment_same": same,
        "losses": losses(_losses(base), _losses(other)),
        "why": sentences(parts, kernels, changed, waits, claimed) if len(pairs) == 1 else [],
        "notes": notes(base, other, chosen),
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
    return compared(recorded(ours, base[0].stacks()), recorded(theirs, other[0].stacks()))


def _losses(sides: Sequence[Side]) -> list[list[float | None]]:
    found = []
    for side in sides:
        if side.kind == "run":
            found.append(list(side.document["losses"]))
        elif side.kind == "tune":
            found.append(list((side.document.get("baseline") or {}).get("losses") or ()))
    return found
