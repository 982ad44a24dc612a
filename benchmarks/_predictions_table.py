"""The results of benchmarks/predictions.py as Markdown. Pure functions."""

from collections.abc import Iterable, Mapping
from typing import Any

from _predictions_pairs import GOALS, summary

Pair = Mapping[str, Any]
_HEAD = (
    "| program | fix | half | predicted | range | measured | interval | error | in range |\n"
    "|---|---|---|--:|--:|--:|--:|--:|:-:|\n"
)
_METHOD = """\
*Predicted*: the speedup of the mean step that the window of one unchanged run promises (the
finding's own prediction where one proposes the fix, else the fix's change replayed), and its
*range*. *Measured*: runs without a window, with the fix (`run --fix`) and without, in turns; the
*interval* is that of 95% over processes. *Error*: predicted over measured speedup, less 1.
*In range*: whether the measured speedup lies in it; unclear where only its interval meets it.
Pairs are split by a hash of their names: constants of
the model may be fitted on the *fitting* half only; the *reporting* half tells how good they are.
"""


def table(document: Mapping[str, Any]) -> str:
    """The pairs, how they were measured, and what they come to."""
    pairs = document["pairs"]
    machine, versions = document["machine"], document["versions"]
    where = [gpu["name"] for gpu in machine["gpus"]] or [machine["cpu"]["model"]]
    ran = [pair for pair in pairs if "measured" in pair]
    parts = [
        f"{document['device']}, {where[0]}, torch {versions['torch']}, {document['date']},"
        f" {_others(ran)}",
        _HEAD + "".join(_row(pair) for pair in ran),
        _unfit(pair for pair in pairs if "measured" not in pair),
        _METHOD,
        "\n".join(_lines(pairs)),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _row(pair: Pair) -> str:
    measured, promise = pair["measured"], pair["promise"]
    cells = [pair["program"], f"`{pair['fix']}`", pair["half"]]
    if promise is None:
        cells += ["not known", "–"]
    else:
        cells += [f"{promise['speedup']:.2f}×", f"{promise['low']:.2f}–{promise['high']:.2f}"]
    cells += [f"{measured['speedup']:.2f}×", f"{measured['low']:.2f}–{measured['high']:.2f}"]
    if promise is None:
        cells += ["–", "–"]
    else:
        cells += [signed(pair["error"]), _held(pair)]
    return f"| {' | '.join(cells)} |\n"


def _held(pair: Pair) -> str:
    return "yes" if pair["within"] else "unclear" if pair["meets"] else "no"


def _unfit(pairs: Iterable[Pair]) -> str:
    """Why fixes did not apply, a line each."""
    return "".join(
        f"- {pair['program']} × `{pair['fix']}`: not applicable: {'; '.join(pair['reasons'])}\n"
        for pair in pairs
    )


def _lines(pairs: Iterable[Pair]) -> Iterable[str]:
    every = list(pairs)
    yield f"- all: {said(summary(every))}"
    for half in ("reporting", "fitting"):
        yield f"- {half} half: {said(summary(p for p in every if p['half'] == half))}"


def said(found: Mapping[str, Any]) -> str:
    """A summary in words, against the goals."""
    if not found["pairs"]:
        return "no pair was measured and predicted."
    parts = [f"{found['pairs']} pairs"]
    for key, words in (("median", "median |error|"), ("p90", "90th percentile")):
        met = "met" if found[key] <= GOALS[key] else "missed"
        parts.append(f"{words} {found[key]:.1%} (goal ≤ {GOALS[key]:.0%}: {met})")
    parts.append(f"largest {found['worst']:.1%}")
    parts.append(f"{found['within']} in range, {found['meets']} unclear")
    parts.append(f"median {found['unmoved']:.1%} if no fix were thought to change anything")
    broken = found["broken"]
    parts.append(f"broken promises: {', '.join(broken) if broken else 'none'}")
    return ", ".join(parts) + "."


def _others(pairs: list[Pair]) -> str:
    known = [pair["others"] for pair in pairs if pair["others"] is not None]
    if len(known) < len(pairs):
        return "what else the machine did meanwhile is not known\n"
    most = max(known, default=0.0)
    return f"others kept up to {most:.1f} cores busy meanwhile\n"


def signed(share: float) -> str:
    """+3.1%, −2.0%."""
    return f"{share:+.1%}".replace("-", "−")
