"""The memory study, drawn: what each technique saves, and what batch it makes room for."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from stepscope.report.render.markdown import code_span, escape_markdown, table_row
from stepscope.report.text import format_bytes, format_number, safe

Document = dict[str, Any]

_HEADS = ("memory", "of fp32", "samples/s", "largest batch", "samples/s there")
_BOUNDS = {
    "limit": "more was not tried",
    "time": "the time for searching was over",
    "failure": "a larger one failed otherwise than by memory",
}


def screen(study: Document) -> list[Text]:
    """Everything between the title and the next command."""
    lines = [Text(f"  {words}", "bold") for words in answers(study)]
    rows = study["rows"]
    cells = {one["technique"]: row_cells(one) for one in rows if one["status"] != "not applicable"}
    widths = [
        max(len(head), *(len(line[n]) for line in cells.values())) for n, head in enumerate(_HEADS)
    ]
    room = 78 - sum(wide + 2 for wide in widths)
    left = max(10, min(room, max(len(one["technique"]) for one in rows)))
    lines += [Text(), Text(f"  {'':<{left}}{_right(_HEADS, widths)}", "dim")]
    for one in rows:
        lines += _row(one, cells.get(one["technique"]), widths, left)
    lines += [Text(), *(Text(f"  {words}", "dim") for words in explanations(study))]
    return lines


def about(study: Document) -> list[str]:
    """What stands in the title besides the model."""
    return [safe(str(study["device_name"] or study["device"]))]


def following(study: Document) -> str:
    """The next command."""
    best = best_row(study)
    fixes = " ".join(f"--fix {safe(fix)}" for fix in best["fixes"]) if best else ""
    return f"stepscope run {fixes} train.py" if fixes else "stepscope fixes"


def best_row(study: Document) -> Document | None:
    """The technique with the largest batch, of equals the fastest; None if nothing fitted."""
    fitted = [one for one in study["rows"] if one["largest_batch"]]
    return max(fitted, key=_rank, default=None)


def _rank(one: Document) -> tuple[int, float]:
    return one["largest_batch"], one["largest_samples_per_s"] or 0.0


def answers(study: Document) -> Iterator[str]:
    """The study in sentences."""
    best, first = best_row(study), study["rows"][0]
    if best is None:
        yield "nothing fitted, at any batch size"
        return
    most = first["largest_batch"]
    name = safe(best["technique"])
    if not most:
        yield f"the largest batch is {best['largest_batch']:,}, with {name}; fp32 fits with none"
    elif best["largest_batch"] == most:
        tried = "" if first["bound"] == "memory" else ", the largest that was tried"
        yield f"nothing makes room for more than fp32 has: a batch of {most:,}{tried}"
    else:
        yield (
            f"{name}: a batch of {best['largest_batch']:,},"
            f" {format_number(best['largest_batch'] / most)}× that of fp32 ({most:,})"
        )
    least = [one for one in study["rows"] if one["of_first"] is not None]
    if len(least) > 1:
        lowest = min(least, key=lambda one: float(one["of_first"]))
        if lowest is not first:
            yield (
                f"least memory at batch {study['batch']:,}: {safe(lowest['technique'])},"
                f" {lowest['of_first']:.0%} of fp32's {format_bytes(first['peak_memory_bytes'])}"
            )


def row_cells(one: Document) -> list[str]:
    """The numbers of a technique; those of accumulation say how large its calls are."""
    largest = "none"
    if one["largest_batch"]:
        mark = "" if one["bound"] == "memory" else "+"
        parts = f" ({one['accumulate']}×{one['largest_micro_batch']:,})"
        largest = f"{one['largest_batch']:,}{mark}{parts if one['accumulate'] > 1 else ''}"
    return [
        format_bytes(one["peak_memory_bytes"]) if one["peak_memory_bytes"] else "too much",
        f"{one['of_first']:.0%}" if one["of_first"] is not None else "–",
        _rate(one["samples_per_s"]),
        largest,
        _rate(one["largest_samples_per_s"]),
    ]


def explanations(study: Document) -> list[str]:
    """What the marks in the table mean, and what set the limits."""
    given = study["memory_limit_gib"]
    limit = f"{given:g} GiB (--memory-limit-gib)" if given else "all of the device's memory"
    words = [f"limit: {limit}; largest batch to one part in 16, each try in its own process"]
    if study["device"] == "cpu":
        words.append("memory: all the process holds, torch too; the limit is on what it allocates")
    if any(one["accumulate"] > 1 for one in study["rows"]):
        words.append("(4×32): four calls of 32 samples make one step of the optimizer")
    for bound in dict.fromkeys(one["bound"] for one in study["rows"] if one["bound"] in _BOUNDS):
        words.append(f"+ {_BOUNDS[bound]}: {', '.join(_bounded(study, bound))}")
    return words


def _bounded(study: Document, bound: str) -> Iterator[str]:
    for one in study["rows"]:
        if one["bound"] == bound:
            why = f" ({safe(one['bound_why'])})" if one["bound_why"] else ""
            yield f"{safe(one['technique'])}{why}"


def page(study: Document) -> list[str]:
    """The study as lines of Markdown."""
    device = escape_markdown(str(study["device_name"] or study["device"]))
    lines = [
        f"## {escape_markdown(study['model'])}: memory at batch {study['batch']:,} on {device}",
        "",
    ]
    lines += [f"- {escape_markdown(words)}" for words in answers(study)]
    heads = ["technique", "fixes", *_HEADS]
    lines += ["", table_row(heads), table_row(["---", "---", *["--:"] * len(_HEADS)])]
    for one in study["rows"]:
        named = [escape_markdown(one["technique"]), code_span(",".join(one["fixes"]))]
        if one["status"] in ("ok", "out_of_memory"):
            lines.append(table_row([*named, *row_cells(one)]))
        else:
            lines.append(
                table_row([*named, escape_markdown(_failure(one)), *[""] * (len(_HEADS) - 1)])
            )
    lines += ["", *(f"- {escape_markdown(words)}" for words in explanations(study))]
    return [*lines, *(f"- {escape_markdown(str(note))}" for note in study["notes"])]


def _row(one: Document, cells: list[str] | None, widths: list[int], left: int) -> list[Text]:
    name = safe(one["technique"])
    if one["status"] not in ("ok", "out_of_memory") or cells is None:
        return [Text(f"  {name:<{left}}  {_failure(one)}", "yellow")]
    if len(name) <= left:
        return [Text(f"  {name:<{left}}{_right(cells, widths)}")]
    return [Text(f"  {name}"), Text(f"  {'':<{left}}{_right(cells, widths)}")]


def _failure(one: Document) -> str:
    why = f": {safe(str(one['why']))}" if one["why"] else ""
    return f"{one['status'].replace('_', ' ')}{why}"


def _rate(value: float | None) -> str:
    return "–" if value is None else format_number(value)


def _right(cells: Any, widths: list[int]) -> str:
    return "".join(f"  {cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))
