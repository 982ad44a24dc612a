"""A grid of points: models against each other, then each model with its sweeps and ablations."""

from typing import Any

from stepscope.report.bench_answer import answer_lines
from stepscope.report.bench_groups import Group, best, groups, speed
from stepscope.report.bench_sweep import sweep_words
from stepscope.report.story.bench_ablation import ablation_blocks
from stepscope.report.story.bench_charts import device_chart, model_chart, sweep_charts
from stepscope.report.story.bench_points import points_table
from stepscope.report.story.blocks import Block, Say, Section
from stepscope.report.text import milliseconds

Document = dict[str, Any]


def grid_verdict(document: Document) -> str:
    """The first thing to know."""
    points = [point for point in document["points"] if point["status"] == "ok"]
    if not points:
        return "Nothing could be measured."
    if (found := best(points)) is not None:
        gain = found["speedup"]
        interval = f"{gain['low']:.2f}–{gain['high']:.2f}"
        where = f"{found['model']} {found['mode']}, batch {found['batch']:,}"
        return f"{found['variant']} makes {where} {gain['ratio']:.2f}× as fast ({interval})."
    rated = [point for point in points if speed(point) is not None]
    if not rated:
        return f"{len(points):,} points were measured."
    top = max(rated, key=lambda point: speed(point) or 0.0)
    unit = "tokens" if top["mode"] == "generate" else "samples"
    return (
        f"{top['model']} does {milliseconds(speed(top) or 0.0)} {unit} a second in {top['mode']}"
        f" on {top['device']}, at batch {top['batch']:,}."
    )


def grid_sections(document: Document) -> list[Section]:
    """The answer, the models side by side, then a section for each model, mode and device."""
    every = groups(document["points"])
    fixes = list((document.get("request") or {}).get("ablate") or [])
    told = [line.plain.strip() for line in answer_lines(document)] if not fixes else []
    repeated = sweep_words(every[0]) if len(every) == 1 else ()
    summary: list[Block] = [Say(text) for text in told if text and text not in repeated]
    charts = (device_chart(every), *(model_chart(every, mode) for mode in _modes(every)))
    summary += [chart for chart in charts if chart is not None]
    made = [Section("summary", "At a glance", tuple(summary))] if summary else []
    return made + [_group(group, number, fixes) for number, group in enumerate(every, start=1)]


def _modes(every: list[Group]) -> list[str]:
    return list(dict.fromkeys(group.mode for group in every))


def _group(group: Group, number: int, fixes: list[str]) -> Section:
    label = f"points-{number}"
    blocks: list[Block] = [Say(f"{words}.") for words in sweep_words(group)]
    blocks += sweep_charts(group, label)
    for batch in group.batches if fixes else ():
        blocks += ablation_blocks(group.at(batch), fixes, batch, f"{label}-{batch}")
    blocks.append(points_table(group, label))
    return Section(label, f"{group.model} · {group.mode} · {group.device}", tuple(blocks))
