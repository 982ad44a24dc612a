"""What screens share: the title line and the bars."""

from rich.text import Text

from stepscope.report.text import milliseconds

_TITLE = "stepscope"


def title(parts: list[str], width: int) -> list[Text]:
    """`stepscope  first · second · …`, on as many lines as it takes."""
    rows = [f"{_TITLE}  {parts[0]}"]
    for part in parts[1:]:
        if len(rows[-1]) + len(part) + 3 > width:
            rows.append(" " * len(_TITLE) + f"  {part}")
        else:
            rows[-1] += f" · {part}"
    return [Text.assemble((rows[0][: len(_TITLE)], "bold"), rows[0][len(_TITLE) :])] + [
        Text(row) for row in rows[1:]
    ]


def bar(label: str, ms: float, total_ms: float, colour: str, width: int) -> Text:
    """One part of a step as a bar; labels of one screen are padded alike by the caller."""
    room = max(10, width - 21 - len(label))
    share = ms / total_ms if total_ms else 0.0
    filled = round(min(share, 1.0) * room * 8)
    blocks = "█" * (filled // 8) + ("▏▎▍▌▋▊▉"[filled % 8 - 1] if filled % 8 else "")
    return Text.assemble(
        f"  {label} {milliseconds(ms):>6} ▕", (blocks.ljust(room), colour), f"▏ {share:>4.0%}"
    )
