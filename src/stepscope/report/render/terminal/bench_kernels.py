"""The heaviest operators and kernels on a terminal and as Markdown, against the ceilings."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.render.terminal.bench_loader import plain
from stepscope.report.render.terminal.console import console_for, print_lines, title_lines
from stepscope.report.text import format_number, safe
from stepscope.trace.nsight.counter_join import kernel_base_name

Document = dict[str, Any]
_WIDEST = 80
_NAME = 18
_KERNELS = 6
_PRODUCTS = ("matmul", "convolution", "attention")


def print_kernels(document: Document, stream: IO[str]) -> None:
    """The screen of `stepscope bench kernels`."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    found = document["kernels"]
    lines = [*_title(document, width), Text(), _headline(found), Text(), *_operators(found)]
    lines += _kernels(found)
    notes = [Text(f"note: {safe(note)}", "yellow") for note in document["notes"]]
    lines += [Text(), *notes] if notes else []
    lines += [Text(), Text(_next(found))]
    print_lines(console, [Text(), *lines], width)


def markdown_kernels(document: Document) -> str:
    """The operators as a table: by the model, and as counted."""
    found = document["kernels"]
    lines = [
        f"**{plain(' '.join(_subject(found)))}** on {plain(device_name(document))}",
        "",
        "| operator | dtype | ms | share | GFLOP | counted | MB | counted | bound | of ceiling |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|--:|",
    ]
    for row in found["operators"]:
        told, scale = row["counted"] or {}, _scale(row)
        cells = [
            plain(row["name"]),
            row["dtype"] or "–",
            format_number(row["time_ms"]),
            f"{row['share']:.0%}",
            _amount(row["flops"], 1e9),
            _amount(_times(told.get("flops"), scale), 1e9),
            _amount(row["bytes"], 1e6),
            _amount(_times(told.get("bytes"), scale), 1e6),
            row["bound"] or "–",
            "–" if row["ceiling_share"] is None else f"{row['ceiling_share']:.0%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {plain(note)}" for note in document["notes"])]
    return "\n".join(lines) + "\n"


def device_name(document: Document) -> str:
    """The device by its maker's name."""
    machine, device = document["machine"], document["kernels"]["device"]
    gpus = machine.get("gpus") or []
    name = (gpus[0] if gpus else {}) if device == "cuda" else machine.get("cpu") or {}
    return str(name.get("name") or name.get("model") or device)


def _subject(found: Document) -> list[str]:
    fixes = [f"with {', '.join(found['fixes'])}"] if found["fixes"] else []
    return [f"{found['model']} {found['mode']}, batch {found['batch']}", *fixes]


def _title(document: Document, width: int) -> list[Text]:
    torch = (document["machine"].get("torch") or {}).get("version")
    version = [f"torch {safe(str(torch)).partition('+')[0]}"] if torch else []
    first, *rest = map(safe, _subject(document["kernels"]))
    parts = [f"bench kernels · {first}", *rest, safe(device_name(document)), *version]
    return title_lines(parts, width)


def _headline(found: Document) -> Text:
    where = "GPU work" if found["on"] == "device" else "operators"
    parts = [f"{format_number(found['work_ms'])} ms of {where} a step"]
    if found["on"] == "device":
        parts.append(f"{found['launched']:,.0f} kernels")
    parts.append(f"FLOPs known of {found['known_share']:.0%}")
    if found["step"]["model_flops"]:
        parts.append(f"{_amount(found['step']['model_flops'], 1e9)} GFLOP")
    return Text("  " + "   ".join(parts), "bold")


def _operators(found: Document) -> list[Text]:
    head = f"  {'operator':<{_NAME}} {'dtype':<5}{'ms':>7}{'share':>6}{'GFLOP':>7}{'MB':>8}"
    lines = [Text(f"{head}{'attained':>13} of ceiling", "bold")]
    for row in found["operators"]:
        name = _clipped(safe(row["name"].removeprefix("aten::")), _NAME)
        lines.append(
            Text(
                f"  {name:<{_NAME}} {row['dtype'] or '–':<5}{format_number(row['time_ms']):>7}"
                f"{row['share']:>6.0%}{_amount(row['flops'], 1e9):>7}"
                f"{_amount(row['bytes'], 1e6):>8}{_rate(row):>13} {_bound(row)}"
            )
        )
        if row["counted"]:
            lines.append(Text(f"    {_counted(row)}", "dim"))
    left = found["operators_in_all"] - len(found["operators"])
    return [*lines, Text(f"  … and {left} more: --top", "dim")] if left > 0 else lines


def _counted(row: Document) -> str:
    """What the counters say of the same calls, and how far the model is from it."""
    told, scale, parts = row["counted"], _scale(row), []
    if told["flops"] is not None:
        error = told["flops_error"]
        off = "" if error is None else f" (model {error:+.1%})"
        parts.append(f"{_amount(told['flops'] * scale, 1e9)} GFLOP{off}")
    if told["bytes"] is not None:
        ratio = told["bytes_ratio"]
        times = "" if ratio is None else f" ({ratio:.2f}× the least)"
        parts.append(f"{_amount(told['bytes'] * scale, 1e6)} MB{times}")
    part = f" ({told['time_share']:.0%} of it)" if told["time_share"] < 0.995 else ""
    return f"counted{part}: {', '.join(parts)}"


def _scale(row: Document) -> float:
    """From the calls that were counted to a step of all of them, going by the model."""
    told = row["counted"]
    if not told:
        return 1.0
    for mine, theirs in ((row["flops"], told["model_flops"]), (row["bytes"], told["model_bytes"])):
        if mine and theirs:
            return float(mine / theirs)
    return float(row["calls"] / told["calls"])


def _rate(row: Document) -> str:
    """What is near a ceiling: the FLOPs of products, the bytes of all else."""
    products = row["category"] in _PRODUCTS and row["bound"] != "memory"
    rate = row["flops_per_s"] if products else row["bytes_per_s"]
    if rate is None:
        return "–"
    large = rate >= 1e12
    unit = "FLOP/s" if products else "B/s"
    return f"{_amount(rate, 1e12 if large else 1e9)} {'T' if large else 'G'}{unit}"


def _bound(row: Document) -> str:
    share = row["ceiling_share"]
    if row["bound"] is None or share is None:
        return "–"
    return f"{row['bound']} {min(share, 1.0):.0%}"


def _kernels(found: Document) -> list[Text]:
    if not found["kernels"]:
        return []
    counted = any(row["counted"] for row in found["kernels"][:_KERNELS])
    rates = f"{'TFLOP/s':>9}{'TB/s':>7}" if counted else ""
    head = f"  {'kernel':<27} {'launched by':<17}{'ms':>7}{'share':>6}{rates}"
    lines = [Text(), Text(head, "bold")]
    for row in found["kernels"][:_KERNELS]:
        name = kernel_base_name(row["name"]) if row["operator"] else row["name"]
        operator = (row["operator"] or "–").removeprefix("aten::")
        words = f"{_clipped(safe(name), 27):<27} {_clipped(safe(operator), 17):<17}"
        line = f"  {words}{format_number(row['time_ms']):>7}{row['share']:>6.0%}"
        if told := row["counted"]:
            line += (
                f"{_amount(told['flops_per_s'], 1e12):>9}{_amount(told['bytes_per_s'], 1e12):>7}"
            )
        lines.append(Text(line))
    return lines


def _next(found: Document) -> str:
    model = safe(found["model"])
    if found["ceilings"] is None or found["ceilings"]["source"] == "datasheet":
        return "Next:  stepscope doctor    measures this machine's ceilings"
    return f"Next:  stepscope bench {model} --mode {found['mode']} --fix none --fix amp=bf16"


def _amount(value: float | None, unit: float) -> str:
    """Three digits or so in a unit; nothing at all is 0."""
    if value is None:
        return "–"
    scaled = value / unit
    if not scaled or scaled < 0.005:
        return "<0.01" if scaled else "0"
    return format_number(scaled) if scaled < 99_999.5 else f"{scaled / 1e3:,.0f}k"


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _clipped(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
