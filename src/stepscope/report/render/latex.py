"""A story as LaTeX: escaped text, tables, a part to \\input, a document around it, and its PDF."""

import re
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stepscope.record.errors import UsageError
from stepscope.record.units import plural
from stepscope.report.render.images import drawable_charts, write_image
from stepscope.report.story import blocks as story
from stepscope.report.story.blocks import Column, Story, Table
from stepscope.report.story.phrases import joined
from stepscope.report.text import one_line, slug, table_cells

_SIGNS = {"×": r"\times", "−": "-", "±": r"\pm", "·": r"\cdot", "∞": r"\infty", "Δ": r"\Delta"}
_RELATIONS = {"→": r"\rightarrow", "←": r"\leftarrow", "≥": r"\geq", "≤": r"\leq", "≈": r"\approx"}
_RAISED = {"²": "^2", "³": "^3", "°": r"^\circ", "µ": r"\mu", "μ": r"\mu"}
_MARKS = {"\\": "backslash", "^": "asciicircum", "~": "asciitilde", "`": "asciigrave", "|": "bar"}
_QUOTES = {'"': "quotedbl", "'": "quotesingle", "‘": "quoteleft", "’": "quoteright"}
_DASHES = {"<": "less", ">": "greater", "“": "quotedblleft", "”": "quotedblright", "–": "endash"}
_SPECIAL = (
    {mark: rf"\{mark}" for mark in "{}$&#%_"}
    | {mark: rf"\text{name}{{}}" for mark, name in (_MARKS | _QUOTES | _DASHES).items()}
    | {mark: rf"\ensuremath{{{code}}}" for mark, code in (_SIGNS | _RELATIONS | _RAISED).items()}
    | {"—": r"\textemdash{}", "…": r"\ldots{}", "\u00a0": "~"}
)
_JOINED = re.compile(r"([-,])(?=\1)")
"""Pairs of these would form a ligature."""
_BREAKS = re.compile(r"([_/:.,;<>()\[\]=+&|-])")
_RUN = 18
"""Characters after which a word without a break point may break anywhere."""


def escape_latex(value: str) -> str:
    """For a sentence or a cell; long words may break at punctuation or anywhere."""
    return " ".join(_word(word) for word in one_line(value).split(" "))


def verbatim(value: str) -> str:
    """Lines of code in \\texttt, with indentation, each line ended by `\\\\*`."""
    lines = [one_line(line.expandtabs(4)) for line in value.splitlines()] or [""]
    made = []
    for line in lines:
        rest = line.lstrip(" ")
        made.append(r"\ " * (len(line) - len(rest)) + (escape_latex(rest) or r"\ "))
    return "\\\\*\n".join(rf"\texttt{{{line}}}" for line in made)


def _word(word: str) -> str:
    if len(word) <= _RUN:
        return _JOINED.sub(r"\1{}", "".join(map(_character, word)))
    made, since = [], 0
    for one in word:
        made.append(_character(one))
        since += 1
        if _BREAKS.match(one) or since >= _RUN:
            made.append(r"\allowbreak{}")
            since = 0
    return _JOINED.sub(r"\1{}", "".join(made))


def _character(one: str) -> str:
    if one in _SPECIAL:
        return _SPECIAL[one]
    if " " <= one <= "~" or ("À" <= one <= "ÿ" and one not in "×÷"):
        return one
    simple = unicodedata.normalize("NFKD", one).encode("ascii", "ignore").decode()
    if simple.strip():
        return "".join(_SPECIAL.get(part, part) for part in simple)
    return rf"\textsuperscript{{U+{ord(one):04X}}}"


_LONG = 110
"""Characters of a cell."""
_WIDE = 92
"""Characters per line in the small type of tables."""
_NUMBER, _LEAST, _NARROW, _MOST = 9, 7, 16, 60
"""Column widths in characters: a number; text at least, when space is short, and at most."""


def latex_table(block: Table) -> str:
    """The table, its title above; rows beyond `shown` are counted, not printed."""
    if not block.rows:
        return ""
    # Kernel names may be pages long: paper shows their beginning and end.
    rows = [
        [cell if len(cell) <= _LONG else f"{cell[: _LONG - 31]}…{cell[-30:]}" for cell in line]
        for line in table_cells(block, block.shown)
    ]
    numbers = [column.number for column in block.columns]
    widths = [_width(one, [line[at] for line in rows]) for at, one in enumerate(block.columns)]
    least = [w if number else min(w, _NARROW) for w, number in zip(widths, numbers, strict=True)]
    parts = [_part(block, rows, one, _fitted(one, widths, least)) for one in _chosen(least)]
    title = rf"\subsubsection*{{{escape_latex(block.title)}}}" if block.title else ""
    left = len(block.rows) - len(rows)
    rest = rf"\emph{{\ldots{{}} and {plural(left, 'row')} more}}" if left > 0 else ""
    return joined(title, *parts, rest, by="\n\n")


def _width(column: Column, cells: list[str]) -> int:
    head = max((len(word) for word in column.heading.split()), default=0)
    longest = max([head, *map(len, cells)])
    return max(_NUMBER, head, longest) if column.number else min(max(longest, _LEAST), _MOST)


def _chosen(widths: list[int]) -> list[list[int]]:
    """Groups of columns that fit side by side; the first column is repeated."""
    made: list[list[int]] = [[0]]
    used = widths[0]
    for at in range(1, len(widths)):
        if used + widths[at] + 2 > _WIDE and len(made[-1]) > 1:
            made.append([0])
            used = widths[0]
        made[-1].append(at)
        used += widths[at] + 2
    return made


def _fitted(chosen: list[int], widths: list[int], least: list[int]) -> dict[int, float]:
    """Each column's width: what it wants, as far as space beyond the minimum allows."""
    room = _WIDE - 2 * len(chosen) - sum(least[at] for at in chosen)
    wanted = sum(widths[at] - least[at] for at in chosen)
    share = min(1.0, max(room, 0) / wanted) if wanted else 0.0
    return {at: least[at] + share * (widths[at] - least[at]) for at in chosen}


def _part(block: Table, rows: list[list[str]], chosen: list[int], widths: dict[int, float]) -> str:
    columns = [block.columns[at] for at in chosen]
    scale = 0.98 / max(_WIDE, sum(widths[at] + 2 for at in chosen))
    spec = "".join(
        rf">{{\ragged{'left' if column.number else 'right'}\arraybackslash}}"
        rf"p{{{widths[at] * scale:.3f}\linewidth}}"
        for at, column in zip(chosen, columns, strict=True)
    )
    head = " & ".join(rf"\textbf{{{escape_latex(column.heading)}}}" for column in columns)
    body = "\n".join(" & ".join(escape_latex(line[at]) for at in chosen) + r" \\" for line in rows)
    return (
        "{\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        rf"\begin{{longtable}}[l]{{@{{}}{spec}@{{}}}}"
        "\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n\\endhead\n{body}\n\\bottomrule\n\\end{{longtable}}}}"
    )


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


def latex_document(whole: story.Story, part: str) -> str:
    """The document for pdflatex; `part` is the part's file name, plain letters without spaces."""
    return _DOCUMENT % (PACKAGES, escape_latex(whole.title), escape_latex(whole.subtitle), part)


def latex_part(whole: story.Story, figures: Mapping[str, str]) -> str:
    """The report without a document around it. `figures`: the PDF file of each chart by its id."""
    needs = "\n".join(f"% {line}" for line in PACKAGES.splitlines())
    head = f"% The document around this needs:\n{needs}\n"
    parts = [head + rf"\begingroup{_SPACES}\textbf{{{escape_latex(whole.verdict)}}}"]
    for section in whole.sections:
        if words := joined(*(_block(block, figures) for block in section.blocks), by="\n\n"):
            parts += [rf"\section*{{{escape_latex(section.title)}}}", words]
    return "\n\n".join([*parts, r"\endgroup"]) + "\n"


def _block(block: story.Block, figures: Mapping[str, str]) -> str:
    match block:
        case story.Paragraph():
            text = escape_latex(block.text)
            return rf"\textbf{{{text}}}" if block.strong else text
        case story.Missing():
            command = verbatim(block.command) if block.command else ""
            words = rf"\emph{{{escape_latex(block.what)}}} {escape_latex(block.how)}".rstrip()
            return f"{words} {command}".rstrip()
        case story.Code():
            return _code(block.text)
        case story.Facts() if block.pairs:
            sides = r"@{}>{\raggedright\arraybackslash}p{0.3\linewidth}"
            sides += r">{\raggedright\arraybackslash}p{0.66\linewidth}@{}"
            pairs = [(escape_latex(name), escape_latex(value)) for name, value in block.pairs]
            rows = "\n".join(rf"{name} & {value} \\" for name, value in pairs)
            return rf"\begin{{longtable}}[l]{{{sides}}}" + f"\n{rows}\n" + r"\end{longtable}"
        case story.Table():
            return latex_table(block)
        case story.Chart() if block.id in figures:
            # Placed in the text, beside what it shows.
            note = rf"\\{{\footnotesize {escape_latex(block.note)}}}" if block.note else ""
            drawn = rf"\includegraphics[width=0.92\linewidth]{{{figures[block.id]}}}"
            title = rf"\textbf{{{escape_latex(block.title)}}}\\[2pt]"
            begin = r"\noindent\begin{minipage}{\linewidth}\centering"
            return rf"{begin} {title}{drawn}{note}\end{{minipage}}"
        case story.Card():
            return _card(block)
        case story.TimelineView() if block.trace:
            return escape_latex(block.sentence)
    return ""


def _code(lines: str) -> str:
    return rf"{{\footnotesize\raggedright{{}}{verbatim(lines)}\par}}"


def _card(card: story.Card) -> str:
    about = [card.gain, card.kind if card.kind != "none" else "", *card.facts(), *card.gains()]
    found = card.excerpt
    return joined(
        rf"\subsection*{{{escape_latex(card.title)}}}",
        rf"\textbf{{{escape_latex(joined(*about))}}}",
        escape_latex(card.why),
        rf"\ensuremath{{\rightarrow}} {escape_latex(card.advice)}" if card.advice else "",
        escape_latex("; ".join(f"{name}: {value}" for name, value in card.evidence)),
        _code(f"{found.file}:{found.line}\n{found.numbered('>')}") if found else "",
        _code("\n".join(card.edit)) if card.edit else "",
        _code(card.command) if card.command else "",
        by="\n\n",
    )


_SECONDS: Final = 120


def tex_files(path: Path) -> tuple[Path, Path]:
    """The paths of a document's part and figure folder, with names that TeX can read."""
    name = slug(path.stem.replace("_", "-"), "report")
    return path.with_name(f"{name}-part.tex"), path.with_name(f"{name}-figures")


def write_tex(story: Story, path: Path) -> list[Path]:
    """The document, its part and the figures as PDF. Raises MissingExtra without matplotlib."""
    body, folder = tex_files(path)
    figures = {}
    for chart in drawable_charts(story):
        folder.mkdir(exist_ok=True)
        file = folder / f"{slug(chart.id, 'chart')}.pdf"
        write_image(chart, file)
        figures[chart.id] = f"{folder.name}/{file.name}"
    body.write_text(latex_part(story, figures), encoding="utf-8")
    path.write_text(latex_document(story, body.stem), encoding="utf-8")
    return [path, body, *([folder] if figures else [])]


def write_pdf(story: Story, path: Path) -> Path:
    """Compiled by pdflatex, in a folder of its own. Raises UsageError if pdflatex is missing."""
    compiler = shutil.which("pdflatex")
    if compiler is None:
        raise UsageError("a PDF needs pdflatex (TeX Live or MiKTeX); -o report.tex needs none")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "report.tex"
        write_tex(story, source)
        compile_tex(compiler, source)
        shutil.copyfile(source.with_suffix(".pdf"), path)
    return path


def compile_tex(compiler: str, source: Path) -> None:
    """Compile twice: long tables learn their widths in the first run. Raises UsageError."""
    options = ("-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape")
    command, folder = [compiler, *options, source.name], source.parent
    for _ in range(2):
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise UsageError(f"pdflatex did not finish: {problem}") from None
        if done.returncode:
            words = done.stdout.decode("utf-8", "replace").splitlines()
            why = next((line for line in words if line.startswith("!")), "see its log")
            raise UsageError(f"pdflatex failed: {why}")
