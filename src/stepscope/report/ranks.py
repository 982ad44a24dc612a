"""Several ranks on a terminal: a row each, and who makes the others wait."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import title
from stepscope.report.lines import console_for, show_lines
from stepscope.report.quality import quality_notes
from stepscope.report.text import milliseconds, plural, safe, shortened

_WIDEST = 80


def print_ranks(document: dict[str, Any], stream: IO[str]) -> None:
    """The screen of `stepscope analyze` for a folder of ranks."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    ranks, comparison = document["ranks"], document["comparison"]
    of = f" of {comparison['world_size']}" if comparison["world_size"] else ""
    device = next((one["source"]["device"] for one in ranks if one["source"]["device"]), None)
    parts = [plural(len(ranks), "rank") + of, *([safe(device)] if device else [])]
    lines = [*title(parts, width), Text(), *_table(comparison["rows"]), *_lateness(comparison)]
    lines.append(Text())
    for note in comparison["notes"]:
        lines.append(Text(f"note: {safe(note)}", "yellow"))
    for one in ranks:
        name = shortened(safe(one["source"]["file"]), 40)
        lines += [Text(f"note: {name}: {safe(note)}", "yellow") for note in quality_notes(one)]
    lines += [Text(), Text("Next:  stepscope analyze FILE    one of them, in full")]
    show_lines(console, [Text(), *lines], width)


def _table(rows: list[dict[str, Any]]) -> list[Text]:
    head = f"  {'rank':>4}  {'steps':>5}  {'ms a step':>9}  {'busy':>5}  {'compute':>7}"
    lines = [Text(f"{head}  {'communicates':>12}  {'exposed':>7}  {'idle':>5}", "bold")]
    for row in rows:
        lines.append(
            Text(
                f"  {_number(row['rank']):>4}  {row['steps']:>5}"
                f"  {milliseconds(row['step_mean_ns'] / 1e6):>9}  {_share(row['busy_share']):>5}"
                f"  {_share(row['compute_share']):>7}  {_share(row['communication_share']):>12}"
                f"  {_share(row['exposed_communication_share']):>7}  {_share(row['idle_share']):>5}"
            )
        )
    return lines


def _number(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _lateness(comparison: dict[str, Any]) -> list[Text]:
    late = [one for one in comparison["lateness"] if one["caused_ns"]]
    if not late:
        return []
    lines = [Text(), Text("Who comes last to a collective", "bold")]
    for one in late[:4]:
        lines.append(
            Text(
                f"    rank {one['rank']}: last {one['last']:,} of {comparison['matched']:,} times,"
                f" others waited {milliseconds(one['caused_ns'] / 1e6)} ms for it"
            )
        )
    return lines
