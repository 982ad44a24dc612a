"""The CPU against the GPU, drawn: the speedup, whether both learn the same, where it comes from."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from stepscope.report.render.markdown import code_span, escape_markdown, table_row
from stepscope.report.render.terminal.bench_answer import (
    format_interval,
    format_small_number,
    half_interval,
)
from stepscope.report.text import format_bytes, format_duration, format_number, safe

Document = dict[str, Any]

_ROLES = (("cpu", "CPU"), ("gpu", "GPU"))
_SHOWN = 6  # points of a curve


def screen(study: Document) -> list[Text]:
    """Everything between the title and the next command."""
    lines = [Text(f"  {words}", "bold") for words in answers(study)]
    lines += [Text(), *_devices(study)]
    lines += _curves(study)
    lines += _operators(study)
    return lines


def about(study: Document) -> list[str]:
    """What stands in the title besides the model."""
    return [safe(str(study[role].get("device_name") or name)) for role, name in _ROLES]


def following(study: Document) -> str:
    """The next command."""
    return f"stepscope bench {safe(study['model'])} --device cuda --ablate amp=bf16,compile=default"


def answers(study: Document) -> Iterator[str]:
    """The study in sentences."""
    for role, name in _ROLES:
        side = study[role]
        if side["status"] != "ok":
            why = f": {safe(str(side['why']))}" if side["why"] else ""
            yield f"{name}: {side['status'].replace('_', ' ')}{why}"
    if study["speedup"] is None:
        return
    gain = study["speedup"]
    limits = format_interval(gain["low"], gain["high"])
    certain = "" if gain["verdict"] in ("FASTER", "SLOWER") else ", within the noise"
    yield f"the GPU is {_times(gain['ratio'])} as fast as the CPU ({limits}){certain}"
    saved = study["saved"]
    parts = [
        f"{format_duration(abs(saved[key]))} {'saved' if saved[key] >= 0 else 'lost'} in {what}"
        for key, what in (("epoch_s", "an epoch"), ("train_s", "the whole training"))
        if saved[key] is not None
    ]
    if parts:
        yield ", ".join(parts)
    yield from agreement_words(study)


def agreement_words(study: Document) -> Iterator[str]:
    """Whether both came to the same."""
    found = study["agreement"]
    if found["first_loss_relative"] is not None:
        apart = found["first_loss_relative"]
        how = f"to {_share(apart)}" if apart else "exactly"
        yield f"losses of the first {found['first_steps']} steps agree {how}"
    if found["same"] is None:
        return
    if found["final_score_difference"] is not None:
        name = safe(str(found["score_name"] or "score")).replace("_", " ")
        scores = " and ".join(f"{study[role]['score']:.4f}" for role, _ in _ROLES)
        what = f"{name} at the end {scores}"
    else:
        what = f"losses at the end differ by {_share(found['final_loss_relative'])}"
    verdict = "the same" if found["same"] else "not the same"
    yield f"{what}: {verdict} within {found['within']:.0%}"


def _devices(study: Document) -> list[Text]:
    heads, cells = device_cells(study)
    widths = [max(len(head), *(len(line[n]) for line in cells)) for n, head in enumerate(heads)]
    lines = [Text(f"     {_right(heads, widths)}", "dim")]
    for (_, name), line in zip(_ROLES, cells, strict=True):
        lines.append(Text(f"  {name}{_right(line, widths)}"))
    return lines


def device_cells(study: Document) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each device."""
    score = safe(str(study["cpu"].get("score_name") or "score")).replace("_", " ")
    heads = ["samples/s", "step ms", "±", "epoch", "memory", "loss", score, "in"]
    return heads, [
        [
            _known(side, "samples_per_s", format_number),
            _known(side, "mean_ms", format_number),
            half_interval(side) or "–",
            _known(side, "epoch_s", format_duration),
            _known(side, "peak_memory_bytes", format_bytes),
            _known(side, "loss", lambda value: f"{value:.4f}"),
            _known(side, "score", lambda value: f"{value:.4f}"),
            _known(side, "arithmetic", safe),
        ]
        for side in (study[role] for role, _ in _ROLES)
    ]


def _curves(study: Document) -> list[Text]:
    losses, scores = curve_points(study)
    if not losses and not scores:
        return []
    lines = [Text(), Text("What both learn", "bold")]
    if losses:
        lines += [Text(f"  {'step':>8}  {'CPU loss':>9}  {'GPU loss':>9}", "dim")]
        lines += [
            Text(f"  {one['step']:>8,}  {_loss(one['cpu']):>9}  {_loss(one['gpu']):>9}")
            for one in losses
        ]
    if scores:
        name = safe(str(study["cpu"].get("score_name") or "score")).replace("_", " ")
        head = f"{'step':>8}  {'CPU':>9}  {'GPU':>9}  {'CPU after':>12}  {'GPU after':>12}"
        lines += [Text(f"  {head}  {name}", "dim")]
        lines += [
            Text(
                f"  {one['step']:>8,}  {one['cpu']:>9.4f}  {one['gpu']:>9.4f}"
                f"  {format_duration(one['cpu_s']):>12}  {format_duration(one['gpu_s']):>12}"
            )
            for one in scores
        ]
    return lines


def curve_points(study: Document) -> tuple[list[Document], list[Document]]:
    """A few losses and scores of the curves, evenly apart, first and last among them."""
    curves = study["curves"] or {"losses": [], "scores": []}
    return _few(curves["losses"]), _few(curves["scores"])


def _few(points: list[Document]) -> list[Document]:
    if len(points) <= _SHOWN:
        return points
    apart = (len(points) - 1) / (_SHOWN - 1)
    return [points[round(n * apart)] for n in range(_SHOWN)]


def _operators(study: Document) -> list[Text]:
    rows = study["operators"]
    if not rows:
        return []
    lines = [Text(), Text("Where the speedup comes from, in a recorded step", "bold")]
    lines.append(Text(f"  {'':<14}{'CPU ms':>9}{'':>6}{'GPU ms':>9}{'':>6}{'speedup':>10}", "dim"))
    for one in rows:
        cells = "".join(
            f"{_known(one, f'{role}_ms', format_number):>9}"
            f"{_known(one, f'{role}_share', lambda share: f'{share:.0%}'):>6}"
            for role, _ in _ROLES
        )
        ratio = _times(one["speedup"]) if one["speedup"] is not None else "–"
        lines.append(Text.assemble(f"  {one['kind']:<14}{cells}", (f"{ratio:>10}", "bold")))
        if one["why"]:
            lines.append(Text(f"    {safe(one['why'])}", "dim"))
    waiting = waiting_words(study)
    return [*lines, Text(), Text(f"  {waiting}")] if waiting else lines


def waiting_words(study: Document) -> str | None:
    """How much of a step the GPU computes; None where that is not known, or nearly all."""
    waiting = study["waiting"]
    if waiting is None or waiting["busy_ms"] > 0.9 * waiting["step_ms"]:
        return None
    return (
        f"the GPU computes {format_number(waiting['busy_ms'])} of a step's"
        f" {format_number(waiting['step_ms'])} ms; the rest of it it waits for the host"
    )


def page(study: Document) -> list[str]:
    """The study as lines of Markdown."""
    fixes = f", with {code_span(','.join(study['fixes']))}" if study["fixes"] else ""
    lines = [
        f"## {escape_markdown(study['model'])}: CPU against GPU, batch {study['batch']:,}{fixes}",
        "",
    ]
    lines += [f"- {escape_markdown(words)}" for words in answers(study)]
    heads, cells = device_cells(study)
    lines += [
        "",
        table_row(["", "device", *map(escape_markdown, heads)]),
        table_row(["---", "---", *["--:"] * len(heads)]),
    ]
    for (role, name), line in zip(_ROLES, cells, strict=True):
        device = escape_markdown(str(study[role].get("device_name") or ""))
        lines.append(table_row([name, device, *map(escape_markdown, line)]))
    losses, scores = curve_points(study)
    if losses:
        lines += ["", table_row(["step", "CPU loss", "GPU loss"]), table_row(["--:", "--:", "--:"])]
        lines += [
            table_row([f"{one['step']:,}", _loss(one["cpu"]), _loss(one["gpu"])]) for one in losses
        ]
    if scores:
        name = escape_markdown(str(study["cpu"].get("score_name") or "score"))
        heads = ["step", f"CPU {name}", f"GPU {name}", "CPU after", "GPU after"]
        lines += ["", table_row(heads), table_row(["--:"] * 5)]
        lines += [
            table_row([f"{one['step']:,}", f"{one['cpu']:.4f}", f"{one['gpu']:.4f}",
                 format_duration(one["cpu_s"]), format_duration(one["gpu_s"])])
            for one in scores
        ]  # fmt: skip
    if study["operators"]:
        lines += ["", *_operator_table(study)]
    return [*lines, "", *(f"- {escape_markdown(str(note))}" for note in study["notes"])]


def _operator_table(study: Document) -> list[str]:
    heads = ["operators", "CPU ms", "share", "GPU ms", "share", "speedup", "possible", "why"]
    lines = [table_row(heads), table_row(["---", *["--:"] * 6, "---"])]
    for one in study["operators"]:
        cells = []
        for role, _ in _ROLES:
            cells.append(_known(one, f"{role}_ms", format_number))
            cells.append(_known(one, f"{role}_share", lambda share: f"{share:.0%}"))
        cells += [_known(one, key, _times) for key in ("speedup", "possible")]
        lines.append(table_row([one["kind"], *cells, escape_markdown(one["why"])]))
    waiting = waiting_words(study)
    return [*lines, "", f"- {escape_markdown(waiting)}"] if waiting else lines


def _right(cells: list[str], widths: list[int]) -> str:
    return "".join(f"  {cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))


def _known(found: Mapping[str, Any], key: str, show: Any) -> str:
    value = found.get(key)
    return "–" if value is None else str(show(value))


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _times(value: float) -> str:
    return f"{format_number(value)}×"


def _share(value: float) -> str:
    return f"{format_small_number(value * 100)}%"
