"""Strangers' text made fit for LaTeX: no character of it is a command, and all can be typeset."""

import re
import unicodedata

from stepscope.report.text import safe

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
}  # fmt: skip
_JOINED = re.compile(r"([-,])(?=\1)")
"""Two of these would become one sign."""
_SYMBOLS = {
    "×": r"\ensuremath{\times}", "−": r"\ensuremath{-}", "–": r"\textendash{}",
    "—": r"\textemdash{}", "→": r"\ensuremath{\rightarrow}", "←": r"\ensuremath{\leftarrow}",
    "·": r"\ensuremath{\cdot}", "…": r"\ldots{}", "±": r"\ensuremath{\pm}",
    "≥": r"\ensuremath{\geq}", "≤": r"\ensuremath{\leq}", "≈": r"\ensuremath{\approx}",
    "∞": r"\ensuremath{\infty}", "µ": r"\ensuremath{\mu}", "μ": r"\ensuremath{\mu}",
    "°": r"\ensuremath{^\circ}", "“": r"\textquotedblleft{}", "”": r"\textquotedblright{}",
    "‘": r"\textquoteleft{}", "’": r"\textquoteright{}", "²": r"\ensuremath{^2}",
    "³": r"\ensuremath{^3}", "Δ": r"\ensuremath{\Delta}", "\u00a0": "~",
}  # fmt: skip
_BREAKS = re.compile(r"([_/:.,;<>()\[\]=+&|-])")
_RUN = 18
"""Characters after which a word without a place to break may be broken anywhere."""


def text(value: str) -> str:
    """A sentence or a cell; long words may be broken, at marks or anywhere."""
    return " ".join(_word(word) for word in _plain(value).split(" "))


def verbatim(value: str) -> str:
    """Lines of code in \\texttt, indentation kept; a line each, ended by `\\\\*`."""
    lines = [_plain(line.expandtabs(4)) for line in value.splitlines()] or [""]
    made = []
    for line in lines:
        rest = line.lstrip(" ")
        made.append(r"\ " * (len(line) - len(rest)) + (text(rest) or r"\ "))
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
    if one in _SYMBOLS:
        return _SYMBOLS[one]
    if " " <= one <= "~" or ("À" <= one <= "ÿ" and one not in "×÷"):
        return one
    simple = unicodedata.normalize("NFKD", one).encode("ascii", "ignore").decode()
    if simple.strip():
        return "".join(_SPECIAL.get(part, part) for part in simple)
    return rf"\textsuperscript{{U+{ord(one):04X}}}"


def _plain(value: str) -> str:
    return safe(" ".join(value.splitlines()) if "\n" in value or "\r" in value else value)
