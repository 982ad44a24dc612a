"""A benchmark as a Markdown page and as CSV."""

import csv as csv_format
import io
from typing import Any

from stepscope.report.render.markdown import code_span, escape_markdown, table_row
from stepscope.report.render.terminal.bench import FAILED, device_names
from stepscope.report.render.terminal.bench_answer import (
    COST_COLUMNS,
    EXTRA_COLUMNS,
    PERCENTILES,
    SPEED_COLUMNS,
    PointColumn,
    ablation_cell,
    columns_with_values,
    format_interval,
    noise_floor_sentence,
    training_columns,
)
from stepscope.report.story.bench.groups import Group, ablation_rows, group_points, sweep_words

Document = dict[str, Any]

FIELDS = (
    "model", "mode", "batch", "device", "variant", "fixes", "status", "why", "rounds",
    "samples_per_s", "batches_per_s", "mean_ms", "mean_low_ms", "mean_high_ms", "std_ms", "p50_ms",
    "p95_ms", "p99_ms", "epoch_s", "loss", "score", "score_name", "steps", "time_to_score_s",
    "first_token_ms", "token_ms", "tokens_per_s", "peak_memory_bytes", "gpu_busy",
    "flops_per_sample", "tflops_per_s", "mfu", "arithmetic", "energy_j_per_sample",
    "carbon_g_per_million", "cost_per_million", "first_calls_s", "clock", "unstable",
    "unstable_why",
)  # fmt: skip
_SPEEDUP = ("against", "ratio", "low", "high", "verdict")


def bench_csv(document: Document) -> str:
    """One line for each point; what was not measured is empty, fixes are joined by spaces."""
    out = io.StringIO()
    writer = csv_format.writer(out, lineterminator="\n")
    more = ["not_applied", "notes", "key"]
    writer.writerow([*FIELDS, *(f"speedup_{name}" for name in _SPEEDUP), *more])
    for point in document["points"]:
        gain = point.get("speedup") or {}
        refused = [f"{one['name']}: {one['why']}" for one in point.get("not_applied") or []]
        plain = point | {"fixes": " ".join(point["fixes"])}
        writer.writerow(
            [plain.get(name) for name in FIELDS]
            + [gain.get(name) for name in _SPEEDUP]
            + ["; ".join(refused), "; ".join(point.get("notes") or []), point.get("key")]
        )
    return out.getvalue()


def bench_markdown(document: Document) -> str:
    """A page with a table for each model, mode and device; a study's own page for a study."""
    if document.get("study"):
        from stepscope.report.render.terminal.bench import markdown_study

        return _joined([*head(document), "", markdown_study(document)])
    lines = [*head(document), ""]
    fixes = list(document["request"].get("ablate") or [])
    for group in group_points(document["points"]):
        lines += [
            f"## {escape_markdown(group.model)} · {group.mode} · {group.device}",
            "",
            *_points_table(group),
            "",
        ]
        lines += [f"- {escape_markdown(words)}" for words in sweep_words(group)]
        for batch in group.batches if fixes else []:
            lines += ["", f"Batch {batch:,}, speedup of each fix:", ""]
            lines += [*_ablation(group.at(batch), fixes), ""]
        lines += [*_remarks(group), ""]
    lines += [f"- {escape_markdown(str(note))}" for note in document.get("notes") or []]
    floor = document.get("noise_floor")
    if floor is not None:
        lines.append(f"- {noise_floor_sentence(floor)}")
    return _joined(lines)


def head(document: Document) -> list[str]:
    """What, where, with what, when."""
    machine = document["machine"]
    torch = (machine.get("torch") or {}).get("version")
    facts = [
        *device_names(document),
        f"torch {torch}" if torch else None,
        f"driver {machine['driver']}" if machine.get("driver") else None,
        document.get("started"),
    ]
    command = document.get("command")
    shown = command if isinstance(command, str) else " ".join(map(str, command or []))
    return [
        "# Benchmark",
        "",
        "; ".join(escape_markdown(str(fact)) for fact in facts if fact),
        *(["", code_span(shown)] if shown else []),
    ]


def _points_table(group: Group) -> list[str]:
    points = group.points
    speed = [*SPEED_COLUMNS[group.mode], *PERCENTILES.get(group.mode, [])]
    columns = columns_with_values(
        [*speed, *training_columns(points), *COST_COLUMNS, *EXTRA_COLUMNS], points
    )
    if len(group.variants) > 1:
        columns = [*columns, PointColumn("speedup", _speedup)]
    lines = [
        table_row(["batch", "variant", *(escape_markdown(column.heading) for column in columns)]),
        table_row(["--:", "---", *("--:" for _ in columns)]),
    ]
    for point in points:
        cells = [column.cell(point) or "" for column in columns]
        if point["status"] != "ok" and cells:
            why = f": {point['why']}" if point.get("why") else ""
            cells[0] = FAILED.get(point["status"], "failed") + why
        mark = " (unstable)" if point.get("unstable") else ""
        name = code_span(point["variant"]) + mark
        lines.append(table_row([f"{point['batch']:,}", name, *map(escape_markdown, cells)]))
    return lines


def _speedup(point: Document) -> str | None:
    gain = point.get("speedup")
    if not gain:
        return None
    limits = format_interval(gain["low"], gain["high"])
    return f"{gain['ratio']:.2f}×{f' ({limits})' if limits else ''} {gain['verdict']}"


def _ablation(points: list[Document], fixes: list[str]) -> list[str]:
    lines = [table_row(["fix", "alone", "added to those above", "all but this"])]
    lines.append(table_row(["---", "--:", "--:", "--:"]))
    for one in ablation_rows(points, fixes):
        cells = [ablation_cell(point) for point in (one.alone, one.added, one.without)]
        lines.append(table_row([code_span(one.fix), *cells]))
    return [*lines, "", "`~`: within the noise."]


def _remarks(group: Group) -> list[str]:
    lines = []
    for point in group.points:
        name = f"batch {point['batch']:,}, {code_span(point['variant'])}"
        lines += [
            f"- {name}: without {code_span(fix['name'])}: {escape_markdown(str(fix['why']))}"
            for fix in point.get("not_applied") or []
        ]
        if point.get("unstable"):
            lines.append(
                f"- {name} is unstable: {escape_markdown(str(point.get('unstable_why') or ''))}"
            )
        lines += [f"- {name}: {escape_markdown(str(note))}" for note in point.get("notes") or []]
    return lines


def _joined(lines: list[str]) -> str:
    """One text, with never more than one empty line in a row."""
    kept = [line for n, line in enumerate(lines) if line or (n and lines[n - 1])]
    return "\n".join(kept).rstrip() + "\n"
