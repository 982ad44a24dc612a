"""The readings of benchmarks/trace_reading.py as Markdown. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median as middle
from typing import Any

from _trace_goals import finished, median, of

_HEAD = (
    "| reader | load | analyse | whole process | range | MB/s | peak memory | time | memory |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
)
_METHOD = """\
Every reading is a separate process, the readers alternate in each round, and the file is in the
page cache. *Load*: from the file to what the reader analyses (without imports); *analyse*:
breakdown, kernel table and idle time. json, orjson and simdjson: *load* is parsing alone and
*analyse* a minimal breakdown (busy, computing and idle time, a total per kernel name, no causes)
in plain Python, without garbage collection. *Whole process*: from start to end, including
imports; median and range of all rounds. *MB/s*: of unpacked JSON, by the whole process. *Peak
memory*: the larger of ru_maxrss and the resident memory of the process and its children together,
sampled 20 times a second. *command*: the wall time is that of `stepscope analyze FILE` as a user
starts it, with findings and screen; its phases and memory those of the same steps in a process of
the benchmark's. Python's compiled files exist: each reader has read a small trace before. *Time*,
*memory*: as a multiple of stepscope's. Goals are judged by medians.
"""


def table(document: Mapping[str, Any]) -> str:
    """Everything that was measured, with a line on where above and some on how below."""
    parts = [_place(document)]
    for case in document["cases"]:
        parts.append(f"**{_title(case)}**\n\n{_HEAD}{''.join(_rows(case))}")
        said = (*_said(case), *_phases(case), *_judged(case))
        parts.append("".join(f"- {line}\n" for line in said))
    return "\n".join([*parts, _METHOD])


def _rows(case: Mapping[str, Any]) -> Iterator[str]:
    ours = finished(of(case, "stepscope")) or finished(of(case, "command"))
    for name in dict.fromkeys(reading["contender"] for reading in case["readings"]):
        readings = [r for r in of(case, name) if "wall_s" in r and "peak_bytes" in r]
        if not readings:
            continue
        walls = [reading["wall_s"] for reading in readings]
        wall, peak = middle(walls), middle(reading["peak_bytes"] for reading in readings)
        more = "> " if any("over_s" in reading for reading in readings) else ""
        ratios = [_ratio(wall, ours, "wall_s", more), _ratio(peak, ours, "peak_bytes", "")]
        cells = [name, *(_seconds(readings, key) for key in ("load_s", "analyse_s"))]
        cells += [f"{more}{wall:.2f} s", f"{min(walls):.2f}–{max(walls):.2f}"]
        cells += [
            "–" if more else f"{case['json_bytes'] / 1e6 / wall:.0f}",
            f"{peak / 1e6:.0f} MB",
            *ratios,
        ]
        yield f"| {' | '.join(cells)} |\n"


def _said(case: Mapping[str, Any]) -> list[str]:
    """Which readers were not there, failed or were ended, and the times the others found."""
    who: dict[str, dict[str, None]] = {}
    for reading in case["readings"]:
        if "missing" in reading:
            text = f"not installed ({reading['missing']})."
        elif "failed" in reading:
            text = f"failed: {reading['failed']}"
        elif "over_s" in reading:
            text = f"ended after {reading['over_s']:.0f} s, unfinished."
        else:
            found = reading["found"]
            text = (
                f"found {found['busy_ms']:.1f} ms busy, {found['compute_ms']:.1f} ms of them "
                f"computing, in {found.get('device_events', 'unknown numbers of')} device events."
            )
        who.setdefault(text, {})[reading["contender"]] = None
    return [f"{', '.join(names)}: {text}" for text, names in who.items()]


def _phases(case: Mapping[str, Any]) -> Iterator[str]:
    """Where the time of the whole command goes."""
    if not (readings := finished(of(case, "command"))):
        return
    parts = {
        "import": middle(reading["import_s"] for reading in readings),
        "read": middle(reading["load_s"] for reading in readings),
    }
    for name in readings[0]["found"]["phases_s"]:
        parts[name] = middle(reading["found"]["phases_s"][name] for reading in readings)
    parts["start and end of Python"] = middle(r["wall_s"] for r in readings) - sum(parts.values())
    listed = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    yield f"Phases of the command (medians): {listed}."


def _judged(case: Mapping[str, Any]) -> Iterator[str]:
    for goal in case["goals"]:
        value = goal["measured"]
        shown = ""
        if value is not None:
            unit = f"{value / 1e6:.0f} MB" if value > 1e5 else f"{value:.{2 if value < 1 else 1}f}"
            shown = f" ({'at least ' if goal['at_least'] else ''}{unit})"
        yield f"Goal {goal['goal']}: **{goal['verdict']}**{shown}."


def _title(case: Mapping[str, Any]) -> str:
    packed = "" if case["format"] == "plain" else f", gzip, {case['file_bytes'] / 1e6:.0f} MB"
    return (
        f"{case['source']} × {case['repetitions']}: {case['json_bytes'] / 1e6:.0f} MB of JSON"
        f"{packed}, {case['rounds']} rounds"
    )


def _seconds(readings: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [reading[key] for reading in readings if key in reading]
    return f"{middle(values):.2f} s" if values else "–"


def _ratio(value: float, ours: Sequence[Mapping[str, Any]], key: str, more: str) -> str:
    own = median(ours, key)
    return f"{more}{value / own:.1f}×" if own else "–"


def _place(document: Mapping[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    packages = {
        f"{package} {version}"
        for reader in versions["readers"].values()
        for package, version in reader.items()
    }
    return (
        f"{machine['cpu']['model'] or 'an unknown CPU'}, {machine['cpu']['usable_cores']} cores; "
        f"stepscope {versions['stepscope']} at {versions['commit'] or 'an unknown commit'}; "
        f"{', '.join(sorted(packages))}; {document['date']}; `{document['command']}`\n"
    )
