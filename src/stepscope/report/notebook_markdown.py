"""Blocks of a story as Markdown cells: strangers' text stays text, also for formulas and tags."""

import re

from stepscope.report import bench_markdown as markdown
from stepscope.report.story import blocks as story
from stepscope.report.text import safe

_ALSO = re.compile(r"([$_])")
_LEADING = re.compile(r"^(\s*)([-+=#]|\d+(?=[.)](?:\s|$)))")
_TICKS = re.compile(r"`+")


def cell(value: str) -> str:
    """A cell of a table. Nothing in it is a formula or emphasis."""
    return _ALSO.sub(r"\\\1", markdown.text(value))


def text(value: str) -> str:
    """A sentence. Nothing in it begins a list or a heading, nor is a formula."""
    escaped = cell(value)
    return _LEADING.sub(lambda found: f"{found[1]}{_entities(found[2])}", escaped)


def fenced(value: str, language: str = "") -> str:
    """Lines of code, in a fence that nothing in them ends."""
    lines = "\n".join(safe(line.expandtabs(4)) for line in value.splitlines())
    longest = max((len(found) for found in _TICKS.findall(lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{lines}\n{fence}"


def block(one: story.Block) -> str:
    """What stands in a text cell of a block that is neither a chart nor a table; "" of those."""
    match one:
        case story.Say():
            return f"**{text(one.text)}**" if one.strong else text(one.text)
        case story.Missing():
            return f"> **{text(one.what)}** {text(one.how)}".rstrip()
        case story.Code():
            return fenced(one.text, one.language)
        case story.Facts():
            return _pairs(one.pairs)
        case story.Card():
            return _card(one)
        case story.TimelineView():
            return _timeline(one)
    return ""


def _card(card: story.Card) -> str:
    about = (card.kind, card.effort, f"{card.confidence} confidence" if card.confidence else "")
    told = " · ".join(text(part) for part in about if part and part != "none")
    gains = [f"**{text(card.gain)}**"] if card.gain else []
    gains += [f"predicted {text(card.predicted)}"] if card.predicted else []
    gains += [f"measured {text(card.measured)}"] if card.measured else []
    parts = [f"### {text(card.title)}", " · ".join(filter(None, [*gains, told])), text(card.why)]
    parts += [_pairs(card.evidence)] if card.evidence else []
    parts += _excerpt(card.excerpt)
    parts += [f"→ {text(card.advice)}"] if card.advice else []
    edit = [f"- {card.before}"] if card.before else []
    edit += [f"+ {line}" for line in card.edit]
    parts += [fenced("\n".join(edit), "diff")] if card.edit else []
    parts += [fenced(card.command, "sh")] if card.command else []
    return "\n\n".join(part for part in parts if part)


def _excerpt(found: story.Excerpt | None) -> list[str]:
    if found is None:
        return []
    width = len(str(found.first + len(found.lines)))
    lines = [
        f"{'→' if number == found.line else ' '} {number:>{width}}  {line}"
        for number, line in enumerate(found.lines, start=found.first)
    ]
    return [markdown.code(f"{found.file}:{found.line}"), fenced("\n".join(lines))]


def _pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    rows = [markdown.row((cell(name), cell(value))) for name, value in pairs]
    return "\n".join([markdown.row(("", "")), markdown.row((":--", ":--")), *rows])


def _timeline(view: story.TimelineView) -> str:
    if view.trace is None:
        return "> **No timeline.**"
    where = markdown.code(view.trace)
    return (
        f"{view.events:,} events lie in {where}, which Perfetto opens; the HTML report draws them."
    )


def _entities(value: str) -> str:
    return "".join(f"&#{ord(one)};" for one in value)
