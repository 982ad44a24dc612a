"""The results of benchmarks/wild.py as Markdown. Pure functions."""

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
_HEAD = (
    "| program | trains | step | steps | same output | first finding | promised → measured "
    "| whole set |\n|---|---|--:|--:|:-:|---|---|--:|\n"
)
_TUNE_HEAD = "| program | kept | speedup | proof | patch |\n|---|---|--:|---|---|\n"
_METHOD = """\
*Steps*: counted, and how many there are where that differs. *Same output*: everything that two
bare runs print and write alike, the observed one does too; `—` where nothing repeats. *Promised →
measured*: of each fix promised 5% or more, by runs in turn with and without it; *refused*:
promised, and then not applied. *Whole set*: the headroom, and what the fixes of "apply them now"
brought; *in part*: the headroom also rests on changes made by hand.
"""
_LOSS = 0.97


def table(document: Mapping[str, Any]) -> str:
    """What ran, how it went, what came of each promise, and the sums."""
    rows = list(document["rows"].values())
    ran = [row for row in rows if row["problem"] is None]
    parts = [_place(document, ran), _HEAD + "".join(map(_row, ran))]
    tuned = [row for row in ran if row.get("tune")]
    if tuned:
        parts.append(_TUNE_HEAD + "".join(map(_tuned, tuned)))
    parts.append(
        "".join(f"- {row['program']}: {row['problem']}\n" for row in rows if row["problem"])
    )
    parts += [_METHOD, "".join(f"- {one}\n" for one in _sums(ran))]
    return "\n".join(part for part in parts if part)


def line(row: Row) -> str:
    """How one program went."""
    if row["problem"]:
        return f"{row['program']}: {row['problem'].strip().splitlines()[-1]}"
    return f"{row['program']}: " + "; ".join(filter(None, map(str.strip, _cells(row)[2:])))


def _place(document: Mapping[str, Any], rows: Iterable[Row]) -> str:
    machine, versions = document["machine"], document["versions"]
    where = [gpu["name"] for gpu in machine["gpus"]] or [machine["cpu"]["model"]]
    loads = [row["load"] for row in rows if row.get("load") is not None]
    busy = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return (
        f"{document['device']}, {where[0]}, {machine['cpu']['usable_cores']} cores{busy},"
        f" torch {versions['torch']}, {document['date']}\n"
    )


def _row(row: Row) -> str:
    return f"| {' | '.join(_cells(row))} |\n"


def _cells(row: Row) -> list[str]:
    step = row["step_ms"]
    found = row["found"]
    first = f"`{found[0]['id']}`" if found else "none"
    if found and found[0]["at"]:
        first += f" {found[0]['at']}"
    return [
        f"{row['program']} ({row['repository']})",
        row["task"],
        "" if step is None else f"{step:.3g} ms",
        _steps(row),
        _same(row["kept"]),
        first,
        "; ".join(map(_promise, row["promises"])),
        _promise({"fix": "", **row["set"]}) if row["set"] else "",
    ]


def _steps(row: Row) -> str:
    counted, expected = row["steps"], row["expected_steps"]
    if expected is None:
        return f"{counted} (unknown)"
    return str(counted) if counted == expected else f"**{counted} of {expected}**"


def _same(kept: Mapping[str, Any]) -> str:
    if kept["exit_code"] is False:
        return "**exit code**"
    if not kept["output"]:
        return "**no**"
    return "yes" if kept["tokens"] or kept["files"] else "—"


def _promise(one: Mapping[str, Any]) -> str:
    promised = "" if one["speedup"] is None else f"{one['speedup']:.2f}"
    if one.get("refused") and "measured" not in one:
        told = "**refused**"
    elif one.get("problem"):
        told = "**failed**" if "exit code" in one["problem"] else "not measured"
    elif "measured" not in one:
        told = "not measured"
    else:
        told = f"{one['measured']:.2f}×"
        told = f"**{told}**" if one["measured"] < _LOSS else told
    part = " (in part)" if one.get("by_hand") else ""
    return f"{one['fix']} {promised} → {told}{part}".strip()


def _tuned(row: Row) -> str:
    tune = row["tune"]
    final, patch = tune.get("final"), tune.get("patch")
    if tune.get("problem"):
        return f"| {row['program']} | **failed** | | | |\n"
    kept = " + ".join(one["fix"] for one in tune["ladder"]) or "nothing"
    proof = (final or {}).get("proof")
    cells = [
        row["program"],
        kept,
        f"{final['speedup']:.2f}×" if final and final["speedup"] else "",
        " ".join(filter(None, (proof["state"], proof["because"]))) if proof else "",
        _patch(patch) if patch else "",
    ]
    return f"| {' | '.join(cells)} |\n"


def _patch(patch: Mapping[str, Any]) -> str:
    if "applies" not in patch:
        return str(patch["status"])
    if not patch["applies"]:
        return "**does not apply**"
    if patch["exit_code"]:
        return "**fails**"
    return f"runs, {patch['measured']:.2f}×" if "measured" in patch else "runs"


def _sums(rows: list[Row]) -> Iterable[str]:
    """What it comes to."""
    told = [row for row in rows if row["expected_steps"] is not None]
    right = sum(row["steps"] == row["expected_steps"] for row in told)
    repeat = [row for row in rows if row["kept"]["tokens"] or row["kept"]["files"]]
    promises = [one for row in rows for one in row["promises"]]
    measured = [one for one in promises if "measured" in one]
    repositories = {row["repository"] for row in rows}
    yield f"{len(rows)} programs of {len(repositories)} repositories ran."
    ended = [row["kept"]["exit_code"] for row in rows if row["kept"]["exit_code"] is not None]
    yield f"Exit code kept: {sum(ended)} of {len(ended)} that ended by themselves."
    yield f"Same output and files: {sum(row['kept']['output'] for row in repeat)} of {len(repeat)}."
    yield f"Steps right: {right} of {len(told)}."
    yield f"With a finding: {sum(bool(row['found']) for row in rows)}."
    losses = sum(one["measured"] < _LOSS for one in measured)
    if promises:
        yield (
            f"Promises of 5% or more: {len(promises)};"
            f" {sum(bool(one.get('refused')) for one in promises)} refused,"
            f" {len(measured)} measured, {losses} a loss of more than {1 - _LOSS:.0%},"
            f" {sum(one['low'] <= one['measured'] <= one['high'] for one in measured)} in range."
        )
