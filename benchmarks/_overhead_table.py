"""The results of benchmarks/overhead.py as Markdown. Pure functions."""

from collections.abc import Iterator, Mapping
from typing import Any

from _overhead_stats import Estimate, agreement, verdict

_HEAD = (
    "| program | step | measured | compared | pairs | ratio | at most | of all time | at most "
    "| goal |\n|---|--:|---|---|--:|--:|--:|--:|--:|---|\n"
)
_NAMES = {
    ("blocks", "observed"): ("blocks", "observed / bare"),
    ("blocks", "observed_step"): ("blocks' median steps", "observed / bare"),
    ("blocks", "observed_after_1"): ("blocks", "observed / bare, after a recording"),
    ("blocks", "observed_after_2"): ("blocks", "observed / bare, after two"),
    ("blocks", "bare_after_1"): ("blocks", "bare after a recording / before"),
    ("blocks", "bare_after_2"): ("blocks", "bare after two / before"),
    ("blocks", "control"): ("blocks", "bare / bare"),
    ("blocks", "control_step"): ("blocks' median steps", "bare / bare"),
    ("blocks", "drift"): ("blocks", "bare / bare, later / earlier"),
    ("processes", "observed"): ("processes", "observed, no window / bare"),
    ("processes", "windowed"): ("processes", "observed, after its window / bare"),
    ("processes", "control"): ("processes", "bare / bare"),
    ("processes", "observed_told"): ("mean step", "as reported, no window / bare"),
    ("processes", "windowed_told"): ("mean step", "as reported, with a window / bare"),
}
_CONTROLS = ("control", "control_step", "drift")
_IN_DETAIL = ("observed_step", "control_step")  # not in the summary
_TOLD = 0.01
_METHOD = """\
*Blocks* of steps alternate inside one process, each observed one beside two bare ones, by their
whole time and by the time of their median step; *processes* are whole runs. Order is random.
Twice, between blocks, steps are recorded as a run's first ones are: kernels, then Python stacks.
Bare blocks after a recording are minutes later than those before: *later / earlier* is the drift.
*Ratio*: the median over pairs of neighbours in time. *Of all time*: the sum of one over the sum of
the other, so costs that only few blocks pay are in it, and every disturbance too. *At most*:
one-sided 95% bound, bootstrap over pairs, none below five; it covers the noise of this run on this
machine, not other machines or programs. A goal is `met` if that bound lies within it, `missed` if
the 5% bound lies beyond it, else `unclear`. *bare / bare* shows the noise. Left out are the first
steps of every block, where the interpreter's caches settle, and each process's warm-up, which holds
the window; nothing else is.
"""


def table(document: Mapping[str, Any]) -> str:
    """The table, with a line above it on where and some below on how it was measured."""
    rows = "".join(row for result in document["results"] for row in _rows(result))
    notes = "".join(f"- {note}\n" for result in document["results"] for note in _notes(result))
    return f"{_place(document)}\n\n{_HEAD}{rows}\n{_METHOD}{_pinned(document)}\n\n{notes}"


def with_summary(docs: str, document: Mapping[str, Any]) -> str:
    """The docs with the summary of these results in its place."""
    begin, end = (f"<!-- {document['device']}: {place} -->" for place in ("begin", "end"))
    before, after = docs.split(begin)[0], docs.split(end)[1]
    return f"{before}{begin}\n{summary(document)}{end}{after}"


def summary(document: Mapping[str, Any]) -> str:
    """A column for each program: ratio, bound and verdict of each comparison."""
    results = [result for result in document["results"] if "missing" not in result]
    lines = [f"{_place(document)}\n"]
    names = [f"{result['program']}, {result['step_ms']:.1f} ms" for result in results]
    lines.append(f"| | {' | '.join(names)} |")
    lines.append("|---|" + "--:|" * len(results))
    for (part, kind), (measured, compared) in _NAMES.items():
        numbers = [result[part]["estimates"].get(kind) for result in results]
        if kind in _IN_DETAIL or not any(numbers):
            continue
        cells = [
            _cell(kind, Estimate(**one), result["goal"]) if one else "–"
            for one, result in zip(numbers, results, strict=True)
        ]
        lines.append(f"| {measured}: {compared} | {' | '.join(cells)} |")
    missing = [one for one in document["results"] if "missing" in one]
    notes = [f"\n{_pinned(document)}", *map(_left_out, missing)]
    return "\n".join([*lines, *notes, ""])


def _cell(kind: str, found: Estimate, goal: float) -> str:
    bound = f" (≤ {percent(found.upper)})" if found.upper is not None else ""
    judged = "" if kind in _CONTROLS else f" {_verdict(kind, found, goal)}"
    return f"{percent(found.ratio)}{bound}{judged}"


def _verdict(kind: str, found: Estimate, goal: float) -> str:
    return agreement(found, _TOLD) if kind.endswith("_told") else verdict(found, goal)


def _left_out(result: Mapping[str, Any]) -> str:
    return f"{result['program']}: left out: {result['missing']}."


def _rows(result: Mapping[str, Any]) -> Iterator[str]:
    if "missing" in result:
        return
    for (part, kind), (measured, compared) in _NAMES.items():
        numbers = result[part]["estimates"].get(kind)
        if numbers is None:
            continue
        found = Estimate(**numbers)
        ratios = (found.ratio, found.upper, found.of_sums, found.of_sums_upper)
        within = f"± {_TOLD:.0%}" if kind.endswith("_told") else f"≤ {result['goal']:.0%}"
        judged = f"{within}: {_verdict(kind, found, result['goal'])}"
        goal = "" if kind in _CONTROLS else judged
        cells = [result["program"], f"{result['step_ms']:.1f} ms", measured, compared]
        cells.append(str(found.pairs))
        yield f"| {' | '.join([*cells, *map(percent, ratios), goal])} |\n"


def percent(ratio: float | None) -> str:
    """A ratio as the share it adds, 1.0123 as +1.23%; a dash for None."""
    return "–" if ratio is None else f"{(ratio - 1) * 100:+.2f}%".replace("-", "−")


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    name = result["program"]
    if "missing" in result:
        yield _left_out(result)
        return
    added_us = result["blocks"]["added_us"]
    yield (
        f"{name}: {result['modules']} modules, {result['parameters']:,} parameters; observing adds "
        f"about {added_us:.0f} µs to a median step."
    )
    if "problem" in result["processes"]:
        yield f"{name}: whole processes failed: {result['processes']['problem']}"
    elif "window_s" in result["processes"]:
        window_s = result["processes"]["window_s"]
        yield f"{name}: the default window took {window_s:.1f} s in all, in the warm-up."
    else:
        yield f"{name}: no time was left for whole processes."


def _place(document: Mapping[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    parts = [machine["cpu"]["model"] or "an unknown CPU"]
    if document["device"] == "cuda":
        parts = [gpu["name"] or "an unknown GPU" for gpu in machine["gpus"]] + parts
    commit = versions["commit"] or "an unknown commit"
    return (
        f"{', '.join(parts)}; Python {versions['python']}, torch {versions['torch']}, stepscope "
        f"{versions['stepscope']} at {commit}; {document['date']}; "
        f"`{document['command']}`"
    )


def _pinned(document: Mapping[str, Any]) -> str:
    cores = len(document["cores"])
    where = f"pinned to {cores} core{'s' * (cores > 1)}" if cores else "not pinned to cores"
    threads = f", torch on {document['threads']} thread" if document["threads"] else ""
    return f"The program was {where}{threads}; stepscope's own process was not pinned."


def anatomy_table(anatomy: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Microseconds per hook, warm and cold, their sums, and what hooks are made of."""
    lines = ["| µs | warm | cold: after real work |", "|---|--:|--:|"]
    rows: dict[str, Mapping[str, float]] = {}
    for part, name in (("hooks", "a clocked step's"), ("unclocked", "an unclocked step's")):
        hooks = anatomy[part]
        rows |= {f"{one} ({part})" if part != "hooks" else one: hooks[one] for one in hooks}
        clocks = ("warm_us", "cold_us")
        rows[f"**{name}**"] = {at: sum(took[at] for took in hooks.values()) for at in clocks}
    for name, took in {**rows, **anatomy["pieces"]}.items():
        lines.append(f"| {name} | {took['warm_us']:.1f} | {took['cold_us']:.1f} |")
    return "\n".join(lines) + "\n"
