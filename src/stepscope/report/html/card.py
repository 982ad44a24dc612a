"""A finding: what it is, what it costs, why, and what to do."""

from stepscope.report.html.code import copyable, edited, excerpt
from stepscope.report.html.escape import attribute, text
from stepscope.report.story.blocks import Card, Code

KINDS = {
    "exact": "the same losses, bit for bit",
    "numeric": "the same model with other rounding or random draws",
    "semantic": "changes training itself",
    "none": "told, not changed",
}


def card(block: Card, label: str, *, timeline: bool) -> str:
    """`label` is its id; the way to its place is offered where the page has a timeline."""
    kind = block.kind if block.kind in KINDS else "none"
    chip = f'<span class="chip" title="{attribute(KINDS[kind])}">{text(block.kind)}</span>'
    facts = " · ".join(text(fact) for fact in (block.effort, _confidence(block)) if fact)
    place = _seek(block) if timeline else ""
    return (
        f'<article class="card kind-{kind}" id="{label}" aria-labelledby="{label}-title">'
        f'<header><div><h3 id="{label}-title">{text(block.title)}</h3>'
        f'<p class="card-facts">{chip} {facts}</p></div>{_gain(block)}</header>'
        f'<div class="card-body"><div class="card-words">{_words(block)}{place}</div>{_code(block)}'
        "</div></article>"
    )


def _confidence(block: Card) -> str:
    return f"{block.confidence} confidence" if block.confidence else ""


def _gain(block: Card) -> str:
    lines = [f"<strong>{text(block.gain)}</strong>"] if block.gain else []
    if block.predicted:
        lines.append(f"<span>predicted {text(block.predicted)}</span>")
    if block.measured:
        lines.append(f'<span class="measured">measured {text(block.measured)}</span>')
    return f'<p class="gain">{"".join(lines)}</p>' if lines else ""


def _words(block: Card) -> str:
    pairs = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in block.evidence)
    return (
        (f"<p>{text(block.why)}</p>" if block.why else "")
        + (f'<dl class="evidence">{pairs}</dl>' if pairs else "")
        + (f'<p class="advice">{text(block.advice)}</p>' if block.advice else "")
    )


def _code(block: Card) -> str:
    parts = [
        excerpt(block.excerpt) if block.excerpt else "",
        edited(block.before, block.edit) if block.edit else "",
        copyable(Code(block.command, "shell")) if block.command else "",
    ]
    return f'<div class="card-code">{"".join(parts)}</div>' if any(parts) else ""


def _seek(block: Card) -> str:
    if block.at_ns is None and not block.search:
        return ""
    start, end = block.at_ns or ("", "")
    return (
        f'<button type="button" data-act="seek" data-from="{start}" data-to="{end}"'
        f' data-search="{attribute(block.search)}">Show in timeline</button>'
    )
