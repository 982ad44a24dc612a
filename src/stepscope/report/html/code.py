"""Code to look at and to copy."""

from stepscope.report.html.escape import attribute, code, text
from stepscope.report.story.blocks import Code, Excerpt


def copyable(block: Code) -> str:
    """Code with a button that copies it."""
    language = f' data-language="{attribute(block.language)}"' if block.language else ""
    return (
        f'<div class="code"{language}><pre tabindex="0"><code>{code(block.text)}</code></pre>'
        f"{_copy()}</div>"
    )


def edited(before: str, after: tuple[str, ...]) -> str:
    """A line as it is and the lines as they would be; the button copies the latter."""
    old = f"<del>{code(before) or ' '}</del>" if before else ""
    new = "".join(f"<ins>{code(line) or ' '}</ins>" for line in after)
    lines = f'<pre tabindex="0"><code>{old}{new}</code></pre>'
    return f'<div class="code edit">{lines}{_copy()}</div>'


def excerpt(block: Excerpt) -> str:
    """Numbered lines, the one that is meant marked."""
    lines = "".join(
        _line(number, line, number == block.line)
        for number, line in enumerate(block.lines, block.first)
    )
    return (
        f'<figure class="excerpt"><figcaption>{text(block.file)}:{block.line}</figcaption>'
        f'<pre tabindex="0"><code>{lines}</code></pre></figure>'
    )


def _line(number: int, line: str, meant: bool) -> str:
    tag = "mark" if meant else "span"
    return f'<{tag} class="line"><b>{number}</b>{code(line) or " "}</{tag}>'


def _copy() -> str:
    return '<button type="button" class="quiet" data-act="copy">Copy</button>'
