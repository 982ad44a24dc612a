"""A story as LaTeX: a part to \\input, and a document around it that compiles by itself."""

from collections.abc import Mapping

from stepscope.report.latex_escape import text, verbatim
from stepscope.report.latex_table import table
from stepscope.report.story import blocks as story
from stepscope.report.text import plural

PACKAGES = r"""\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{textcomp,lmodern,graphicx,array,longtable,booktabs}"""
_DOCUMENT = r"""\documentclass[a4paper,10pt]{article}
%s
\usepackage[margin=22mm]{geometry}
\setlength{\parindent}{0pt}
\setlength{\parskip}{5pt}
\setlength{\emergencystretch}{3em}
\title{%s}
\author{stepscope}
\date{%s}
\begin{document}
\maketitle
\input{%s}
\end{document}
"""


_SPACES = r"\setlength{\LTpre}{4pt}\setlength{\LTpost}{4pt}\setlength{\LTleft}{0pt}"


def document(whole: story.Story, part: str) -> str:
    """What compiles with pdflatex; `part` is the part's file name, plain letters without spaces."""
    return _DOCUMENT % (PACKAGES, text(whole.title), text(whole.subtitle), part)


def part(whole: story.Story, figures: Mapping[str, str]) -> str:
    """The report without a document around it. `figures`: the PDF file of each chart by its id."""
    needs = "\n".join(f"% {line}" for line in PACKAGES.splitlines())
    head = f"% The document around this needs:\n{needs}\n"
    sections = [made for one in whole.sections if (made := _section(one, figures))]
    verdict = rf"\begingroup{_SPACES}\textbf{{{text(whole.verdict)}}}"
    return "\n\n".join([head + verdict, *sections, r"\endgroup"]) + "\n"


def _section(section: story.Section, figures: Mapping[str, str]) -> str:
    made = [words for block in section.blocks if (words := _block(block, figures))]
    return "\n\n".join([rf"\section*{{{text(section.title)}}}", *made]) if made else ""


def _block(block: story.Block, figures: Mapping[str, str]) -> str:
    match block:
        case story.Say():
            return rf"\textbf{{{text(block.text)}}}" if block.strong else text(block.text)
        case story.Missing():
            return rf"\emph{{{text(block.what)}}} {text(block.how)}".rstrip()
        case story.Code():
            return _code(block.text)
        case story.Facts():
            return _pairs(block.pairs)
        case story.Table():
            return table(block)
        case story.Chart():
            return _figure(block, figures)
        case story.Card():
            return _card(block)
        case story.TimelineView():
            return _timeline(block)


def _code(lines: str) -> str:
    return rf"{{\footnotesize\raggedright{{}}{verbatim(lines)}\par}}"


def _pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    if not pairs:
        return ""
    sides = r"@{}>{\raggedright\arraybackslash}p{0.3\linewidth}"
    sides += r">{\raggedright\arraybackslash}p{0.66\linewidth}@{}"
    rows = "\n".join(rf"{text(name)} & {text(value)} \\" for name, value in pairs)
    return rf"\begin{{longtable}}[l]{{{sides}}}" + f"\n{rows}\n" + r"\end{longtable}"


def _figure(chart: story.Chart, figures: Mapping[str, str]) -> str:
    """Where it stands in the text, so that it is found beside what it shows."""
    if chart.id not in figures:
        return ""
    note = rf"\\{{\footnotesize {text(chart.note)}}}" if chart.note else ""
    drawn = rf"\includegraphics[width=0.92\linewidth]{{{figures[chart.id]}}}"
    title = rf"\textbf{{{text(chart.title)}}}\\[2pt]"
    return (
        rf"\noindent\begin{{minipage}}{{\linewidth}}\centering {title}{drawn}{note}\end{{minipage}}"
    )


def _card(card: story.Card) -> str:
    about = [card.gain, card.kind if card.kind != "none" else "", card.effort]
    about += [f"{card.confidence} confidence"] if card.confidence else []
    about += [f"predicted {card.predicted}"] if card.predicted else []
    about += [f"measured {card.measured}"] if card.measured else []
    parts = [
        rf"\subsection*{{{text(card.title)}}}",
        rf"\textbf{{{text(' · '.join(part for part in about if part))}}}",
        text(card.why),
        rf"\ensuremath{{\rightarrow}} {text(card.advice)}" if card.advice else "",
        text("; ".join(f"{name}: {value}" for name, value in card.evidence)),
        _excerpt(card.excerpt),
        _code("\n".join(card.edit)) if card.edit else "",
        _code(card.command) if card.command else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _excerpt(found: story.Excerpt | None) -> str:
    if found is None:
        return ""
    lines = [
        f"{'>' if number == found.line else ' '} {number:>5}  {line}"
        for number, line in enumerate(found.lines, start=found.first)
    ]
    return _code("\n".join([f"{found.file}:{found.line}", *lines]))


def _timeline(view: story.TimelineView) -> str:
    if view.trace is None:
        return ""
    return text(f"{plural(view.events, 'event')} were recorded: {view.trace} opens in Perfetto.")
