"""The results of benchmarks/fix_compatibility.py as Markdown. Pure functions."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]
BEGIN, END = "<!-- compatibility: begin -->", "<!-- compatibility: end -->"
_MARKS = {"runs": "✓", "not applicable": "–", "stops": "■", "declared bad": "bad", "broken": "✗"}
_MARKS |= {"not run": "?"}
_NO_DEVICE = "no CUDA device"
_PLACE = re.compile(r",? ?(called|made)? ?(at|of) \S+\.py:\d+")


def placed(text: str, documents: Iterable[Document]) -> str:
    """The docs' page with these tables between its markers."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise RuntimeError(f"the page has no {BEGIN} … {END}")
    tables = "\n".join(table(document) for document in documents)
    return f"{before}{BEGIN}\n{tables}{END}{after}"


def table(document: Document) -> str:
    """All tables of a device."""
    machine = document["machine"]
    device = machine["gpus"][0]["name"] if document["device"] == "cuda" else machine["cpu"]["model"]
    versions = document["versions"]
    parts = [
        f"### On {'a GPU' if document['device'] == 'cuda' else 'the CPU'}\n",
        f"{device}; Python {versions['python']}, torch {versions['torch']}, stepscope "
        f"{versions['stepscope']} at {versions['commit']}; {document['date']}; "
        f"`{document['command']}`\n",
        f"{_counts(document)}{_late(document)}{_absent(document)}\n",
        "".join(_alone(document)),
        "".join(_why(document)),
        "".join(_together(document)),
        "".join(_pairs(document)),
    ]
    return "\n".join(filter(None, parts))


def _counts(document: Document) -> str:
    states = [
        cell[0] for found in document["programs"].values() for cell in found["cells"].values()
    ]
    counted = ", ".join(f"{states.count(state)} {state}" for state in _MARKS if state in states)
    run = sum(found["run"] for found in document["programs"].values())
    return f"{len(states)} cells, {run} of them run: {counted}."


def _late(document: Document) -> str:
    """A sentence on the programs that time ran out for."""
    late = {
        name.replace("_", " "): sum(state == "not run" for state, *_ in found["cells"].values())
        for name, found in document["programs"].items()
    }
    named = ", ".join(f"{count} of {name}" for name, count in late.items() if count)
    return f" Not run, for want of time: {named}." * bool(named)


def _absent(document: Document) -> str:
    """A sentence on the fixes that had no device to work on."""
    here = {text.split("=")[0] for text in _rows_of(document)}
    names = [f"`{name}`" for name in document["fixes"] if name not in here]
    return f" For want of a CUDA device not applicable anywhere: {', '.join(names)}." * bool(names)


def _rows_of(document: Document) -> list[str]:
    """Every fix as it was asked for, those left out that had no device anywhere."""
    programs = document["programs"].values()
    asked = dict.fromkeys(
        text
        for found in programs
        for text, (_, _, why) in found["cells"].items()
        if "+" not in text and _NO_DEVICE not in found["whys"][why]
    )
    order = document["fixes"]
    return sorted(asked, key=lambda text: order.index(text.split("=")[0]))


def _alone(document: Document) -> Iterator[str]:
    programs = document["programs"]
    yield f"| alone | {' | '.join(name.replace('_', ' ') for name in programs)} |\n"
    yield f"|---|{':-:|' * len(programs)}\n"
    for text in _rows_of(document):
        marks = (_MARKS[found["cells"].get(text, [""])[0]] for found in programs.values())
        yield f"| `{text}` | {' | '.join(marks)} |\n"


def _why(document: Document) -> Iterator[str]:
    """Per fix, why it did not apply where it did not."""
    for text in _rows_of(document):
        reasons: dict[str, list[str]] = {}
        for program, found in document["programs"].items():
            state, _, why = found["cells"].get(text, ["", 0, 0])
            if state not in ("runs", ""):
                reason = _PLACE.sub("", found["whys"][why]).partition(": ")[2]
                reasons.setdefault(reason, []).append(program.replace("_", " "))
        said = (f"{why} ({_all(who, document)})" for why, who in reasons.items())
        if reasons:
            yield f"- `{text}`: {'; '.join(said)}\n"


def _all(programs: list[str], document: Document) -> str:
    return "all" if len(programs) == len(document["programs"]) else ", ".join(programs)


def _together(document: Document) -> Iterator[str]:
    """The largest sets: how many of their fixes applied at once."""
    programs = document["programs"]
    sets = dict.fromkeys(
        text for found in programs.values() for text in found["cells"] if text.count("+") > 1
    )
    if not sets:
        return
    yield f"| at once | {' | '.join(name.replace('_', ' ') for name in programs)} |\n"
    yield f"|---|{':-:|' * len(programs)}\n"
    for number, text in enumerate(sets, start=1):
        cells = (found["cells"].get(text, ["", 0])[:2] for found in programs.values())
        marks = (
            f"{held} applied" if state in ("runs", "not applicable") else _MARKS.get(state, "")
            for state, held in cells
        )
        yield f"| set {number}: {text.count('+') + 1} fixes | {' | '.join(marks)} |\n"
    yield "\n"
    for number, text in enumerate(sets, start=1):
        yield f"- set {number}: {', '.join(f'`{one}`' for one in text.split('+'))}\n"


def _pairs(document: Document) -> Iterator[str]:
    """For every two fixes, in how many programs both applied and all checks passed."""
    programs = document["programs"]
    found = {
        frozenset(one.split("=")[0] for one in text.split("+")): text
        for cells in programs.values()
        for text in cells["cells"]
        if text.count("+") == 1
    }
    if not found:
        return
    paired = frozenset().union(*found)
    names = dict.fromkeys(text.split("=")[0] for text in _rows_of(document))
    order = [name for name in names if name in paired]
    heads = " | ".join(str(number) for number in range(1, len(order)))
    yield f"| pairs | {heads} |\n|---|{':-:|' * (len(order) - 1)}\n"
    for number, name in enumerate(order[1:], start=2):
        marks = (
            _pair(found.get(frozenset((name, other)), ""), programs)
            for other in order[: number - 1]
        )
        empty = [""] * (len(order) - number)
        yield f"| {number} `{name}` | {' | '.join([*marks, *empty])} |\n"
    yield f"\n1 is `{order[0]}`. A number: in how many programs both applied. ·: never both.\n"


def _pair(text: str, programs: Document) -> str:
    states = [cells["cells"][text] for cells in programs.values() if text in cells["cells"]]
    if any(state in ("broken", "stops") for state, *_ in states):
        return "✗"
    if any(state == "declared bad" for state, *_ in states):
        return "bad"
    return str(sum(state == "runs" for state, *_ in states) or "·") if states else ""
