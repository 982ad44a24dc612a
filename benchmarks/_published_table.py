"""The cases beside published figures, as Markdown."""

from typing import Any

from _published_cases import CASES

Record = dict[str, Any]


def table(document: dict[str, Any]) -> str:
    """A section for each case."""
    lines: list[str] = []
    for name, found in document["cases"].items():
        case = CASES[name]
        lines += [f"**{case.title}**", ""]
        if case.published:
            lines += [f"Published, on another machine: {case.published}.", ""]
        lines += [f"`{found['command']}`", ""]
        if "failed" in found:
            lines += [f"Failed: {found['failed'].splitlines()[-1]}", ""]
            continue
        lines += {"variants": variants, "batches": batches, "study": study}[case.shape](found)
        lines.append("")
    return "\n".join(lines)


def variants(found: Record) -> list[str]:
    """One row per variant, its speed against the first's."""
    lines = [
        "| fixes | mean ms | p50 ms | samples/s | throughput | p50 | verdict | GPU busy | MFU"
        " | J/sample | first calls | not applied |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|---|",
    ]
    first = found["points"][0]
    return lines + [_variant(point, first) for point in found["points"]]


def _variant(point: Record, first: Record) -> str:
    speedup = point.get("speedup") or {}
    lower = _ratio(point["p50_ms"], first["p50_ms"])
    cells = [
        point["variant"],
        _number(point["mean_ms"], 2),
        _number(point["p50_ms"], 2),
        _number(point["samples_per_s"], 0),
        f"{_number(_ratio(point['samples_per_s'], first['samples_per_s']), 2)}×",
        "" if lower is None or point is first else f"{lower - 1:+.0%}",
        _verdict(speedup),
        _share(point["gpu_busy"]),
        _share(point["mfu"]),
        _number(point["energy_j_per_sample"], 4),
        f"{_number(point['first_calls_s'], 1)} s",
        "; ".join(f"{fix['name']}: {fix['why']}" for fix in point["not_applied"]),
    ]
    if point["status"] != "ok":
        cells[1:] = [f"{point['status']}: {point['why']}", *[""] * (len(cells) - 2)]
    return "| " + " | ".join(cells) + " |"


def _verdict(speedup: Record) -> str:
    if not speedup:
        return ""
    return f"{speedup['verdict']} ({speedup['low']:.2f}–{speedup['high']:.2f})"


def batches(found: Record) -> list[str]:
    """One row per batch size and variant."""
    lines = [
        "| batch | fixes | mean ms | samples/s | peak memory | GPU busy | MFU | J/sample |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for point in found["points"]:
        row = [str(point["batch"]), point["variant"]]
        if point["status"] != "ok":
            row += [f"{point['status']}: {point['why']}", *[""] * 5]
        else:
            row += [
                _number(point["mean_ms"], 2),
                _number(point["samples_per_s"], 0),
                f"{point['peak_memory_bytes'] / 2**30:.2f} GiB",
                _share(point["gpu_busy"]),
                _share(point["mfu"]),
                _number(point["energy_j_per_sample"], 5),
            ]
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, "", *_knees(found["points"])]


def _knees(points: list[Record]) -> list[str]:
    """Where a larger batch stops being worth it, for each variant."""
    from stepscope.stats.series import knee_index

    lines = []
    for variant in dict.fromkeys(point["variant"] for point in points):
        rates = sorted(
            (point["batch"], point["samples_per_s"])
            for point in points
            if point["variant"] == variant and point["status"] == "ok"
        )
        found = knee_index([rate for _, rate in rates])
        if found is not None:
            lines.append(f"{variant}: batch {rates[found][0]} is within 5% of the best.")
    return lines


def study(found: Record) -> list[str]:
    """The study as the report writes it."""
    from msgspec import convert

    from stepscope.bench.results import BenchResult
    from stepscope.report.render.markdown import section_text
    from stepscope.report.story.bench.story import bench_story

    story = bench_story(convert({"study": found["study"]}, BenchResult))
    parts = [story.verdict]
    for section in story.sections[:-1]:
        parts += section_text(section)
    return "\n\n".join(parts).splitlines()


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
