"""A page inside another one: it can touch nothing there."""

from html import escape

_HEAD = "<head>\n"
_MAY = "allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"


def framed(page: str, height: int) -> str:
    """HTML for a notebook's output. The page has an origin of its own, `height` is in pixels."""
    # Its links to its own sections would else lead to the page around it.
    page = page.replace(_HEAD, f'{_HEAD}<base href="about:srcdoc">\n', 1)
    style = f"width:100%;height:{height}px;border:1px solid #8884;border-radius:6px"
    return (
        f'<iframe sandbox="{_MAY}" allow="clipboard-write" style="{style}" loading="lazy"'
        f' title="stepscope report" srcdoc="{escape(page, quote=True)}"></iframe>'
    )
