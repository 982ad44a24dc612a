"""A program's output, read as lines of words and the numbers in them. Whatever depends on the
clock, on memory or on where the program runs is left out: dates, durations, rates, sizes, paths,
addresses, progress bars and, as words, warnings.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_LONGEST: Final = 1000
_FEWEST_DIGITS: Final = 4
"""Digits a place's numbers need together to count if they may be times without a unit: two runs
rarely agree in this many by chance."""

_PASSED_OVER: Final = r"""
    \x1b\[[0-9;?]*[A-Za-z]                                      # colours
  | \b0x[0-9a-fA-F]+\b                                          # addresses
  | \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}(?:-[0-9a-f]{4,})*\b  # hashes
  | \b\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T\ ]\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?
  | \b\d+:\d\d(?::\d\d)?(?:[.,]\d+)?\b                          # times of day, durations
  | (?<![\w.])(?:~|\.\.?)?/[^\s'",;:()]*[A-Za-z_][^\s'",;:()]*  # paths
"""
_NUMBER: Final = r"""
    (?:(?<![\w./+-])|(?<=\d/))
    (?:[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|-?(?:nan|inf)\b|(?:True|False)\b)
"""
_TOKEN: Final = re.compile(rf"(?P<over>{_PASSED_OVER})|(?P<number>{_NUMBER})", re.VERBOSE)
_INTEGER: Final = re.compile(r"[-+]?\d+(?:,\d{3})*")

_UNIT: Final = r"(?:s|sec\w*|[munµμ]s|min\w*|h|hours?|[kmgt]i?b|bytes?|[x×]|fps|w|watts?|workers?)"
_MEASURED_AFTER: Final = re.compile(
    rf"[A-Za-zµμ×]|\s*(?:[\w]+\s*(?:/|per\b)\s*)?{_UNIT}(?![\w])", re.IGNORECASE
)
_MEASURED_BEFORE: Final = re.compile(
    r"time|elapsed|took|duration|second|\bsec|minute|hour|\bms\b|\beta\b|/s\b|fps|speed|throughput"
    r"|latency|memory|\bmem|alloc|reserved|rss|vram|worker|wall|clock|pid|thread|util|watt|temp",
    re.IGNORECASE,
)

_WARNING: Final = re.compile("warn", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W\d_]{2}")

Place = tuple[str, int]
"""A line without its numbers, and the index of a number in it."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A program's output: its numbers by place, in printing order, and its words."""

    numbers: Mapping[Place, tuple[str, ...]]
    lines: Mapping[str, tuple[str, ...]]  # the lines of each form
    words: Mapping[str, int] = field(default_factory=dict)
    """How often a line of each form was printed, of those that tell neither of the run's costs nor
    of a warning."""

    def lines_apart(self, place: Place, other: "Printed") -> tuple[str, str]:
        """The first line whose number at a place differs, and the other's line."""
        pairs = zip(self.numbers[place], other.numbers[place], strict=False)
        at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), 0)
        return self.lines[place[0]][at], other.lines[place[0]][at]

    def new_line(self, other: "Printed") -> str | None:
        """The first line with words that the other has not, or has less often."""
        forms = (form for form, count in self.words.items() if count > other.words.get(form, 0))
        form = next(forms, None)
        return None if form is None else self.lines[form][0]

    def is_count(self, place: Place) -> bool:
        """Whether all its numbers are integers."""
        return all(_INTEGER.fullmatch(number) for number in self.numbers[place])


def read_printed(text: str) -> Printed:
    """Reads the output without what may be measurements."""
    lines: dict[str, list[str]] = {}
    numbers: dict[Place, list[str]] = {}
    words: Counter[str] = Counter()
    warned = False
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if "\r" in line or len(line) > _LONGEST:
            continue  # a progress bar; a table of numbers
        form, found = _parsed(line)
        warned = bool(_WARNING.search(line)) or (warned and line[:1].isspace())
        if not warned and _tells_no_cost(form):
            words[form] += 1
        if found or form in words:
            lines.setdefault(form, []).append(line.strip())
        for at, number in enumerate(found):
            numbers.setdefault((form, at), []).append(number)
    return Printed(
        {place: tuple(told) for place, told in numbers.items() if _tells(place, told)},
        {form: tuple(told) for form, told in lines.items()},
        dict(words),
    )


def _parsed(line: str) -> tuple[str, list[str]]:
    """A line's form, and its numbers that are not measurements."""
    tokens = [*_TOKEN.finditer(line)]
    form: list[str] = []
    found: list[str] = []
    end = 0
    for token in tokens:
        before = line[end : token.start()]
        end = token.end()
        form.append(before)
        if token["over"] is not None:
            form.append("@")
        elif _MEASURED_BEFORE.search(before) or _MEASURED_AFTER.match(line, end):
            form.append("~")
        else:
            form.append("#")
            found.append(token["number"])
    return " ".join("".join([*form, line[end:]]).split()), found


def _tells_no_cost(form: str) -> bool:
    """Whether a form has words, none of which is about time, speed, memory or processes."""
    return bool(_WORD.search(form)) and "~" not in form and not _MEASURED_BEFORE.search(form)


def _tells(place: Place, numbers: list[str]) -> bool:
    """Whether agreement in these numbers is unlikely to be chance."""
    form, _ = place
    if any(letter.isalpha() for letter in form) and all(map(_INTEGER.fullmatch, numbers)):
        return True
    digits = sum(len(re.sub(r"\D|e.*$", "", number).lstrip("0")) for number in numbers)
    words = [number for number in numbers if number in ("True", "False")]
    return digits >= _FEWEST_DIGITS or bool(words)
