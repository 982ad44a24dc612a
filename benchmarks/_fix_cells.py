"""What benchmarks/fix_compatibility.py keeps of its cells. Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Fixes = tuple[str, ...]
FAULTS = ("broken", "stops")
LATE = "not run"


def kept(found: Sequence[Any]) -> dict[str, Any]:
    """The cells of a program: its fixes → state, how many applied, and the number of the why.

    `run` is how many were found out by a run: others follow from what their fixes say.
    """
    told = {"+".join(cell.fixes): (cell.state, cell.held, cell.why) for cell in found}
    return _numbered(told, sum(cell.seconds > 0 for cell in found))


def merged(earlier: Mapping[str, Any], found: Sequence[Any]) -> dict[str, Any]:
    """A program's cells of before, and those found since in place of theirs."""
    whys = earlier["whys"]
    told = {text: (state, held, whys[why]) for text, (state, held, why) in earlier["cells"].items()}
    done = {text for text, (state, *_) in told.items() if state != LATE}
    new = [cell for cell in found if "+".join(cell.fixes) not in done and cell.seconds > 0]
    told |= {"+".join(cell.fixes): (cell.state, cell.held, cell.why) for cell in found}
    return _numbered(told, earlier["run"] + len(new))


def without_stale(earlier: Mapping[str, Any], at_once: Sequence[Fixes]) -> dict[str, Any]:
    """A program's cells but for those of many fixes that are not asked for any more."""
    whys, asked = earlier["whys"], {"+".join(fixes) for fixes in at_once}
    told = {
        text: (state, held, whys[why])
        for text, (state, held, why) in earlier["cells"].items()
        if text.count("+") < 2 or text in asked
    }
    return _numbered(told, earlier["run"])


def lacking(
    earlier: Mapping[str, Any], sets: Sequence[Fixes], judged_by: Callable[[Fixes], Fixes]
) -> list[Fixes]:
    """The sets that were not run, or are faulty; and the fixes alone that they are judged by."""
    cells = earlier["cells"] if earlier else {}
    wanted = [s for s in sets if cells.get("+".join(s), [LATE])[0] in (LATE, *FAULTS)]
    models = {judged_by(fixes) for fixes in wanted}
    return [fixes for fixes in sets if fixes in wanted or fixes in models]


def _numbered(told: Mapping[str, tuple[str, int, str]], run: int) -> dict[str, Any]:
    whys: dict[str, int] = {}
    cells = {
        text: [state, held, whys.setdefault(why, len(whys))]
        for text, (state, held, why) in told.items()
    }
    return {"run": run, "whys": list(whys), "cells": cells}
