"""Whether clocks agree, and the table of it. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

_METHOD = """\
In one process; clocks take turns, each round in another order. *Median*: the middle one of the
rounds' medians. *Difference*: against stepscope's calls in a row. *Noise*: what two rounds of one
clock stay within, 19 times of 20. Clocks *agree* within it, but at least within {least:.0%}, below
which stepscope claims no difference; noise beyond {most:.0%} leaves it open.
"""


def agreement(rounds_s: Mapping[str, Sequence[float]], against: str) -> dict[str, Any]:
    """Medians of each clock's rounds, their differences from one of them, and the noise."""
    from stepscope.stats.verdict import MIN_DIFFERENCE, noise_floor

    noise = noise_floor([[[seconds] for seconds in rounds] for rounds in rounds_s.values()])
    if noise is None:
        raise ValueError("noise is not known from a single round")
    base = median(rounds_s[against])
    clocks = {}
    for name, rounds in rounds_s.items():
        ratio = median(rounds) / base
        agrees = _agrees(max(ratio, 1 / ratio) - 1, max(MIN_DIFFERENCE, noise))
        clocks[name] = {
            "median_s": ratio * base,
            "difference": ratio - 1,
            "agrees": agrees,
            "rounds_s": list(rounds),
        }
    return {"noise": noise, "clocks": clocks}


def _agrees(difference: float, noise: float) -> str:
    from stepscope.stats.verdict import MAX_SAME_DIFFERENCE

    if difference > noise:
        return "no"
    return "yes" if noise <= MAX_SAME_DIFFERENCE else "unclear"


def table(document: Mapping[str, Any]) -> str:
    """A row per function and clock."""
    rows = "".join(row for result in document["results"] for row in _rows(result))
    head = (
        "| function | clock | rounds | median | difference | noise | agrees |\n"
        "|---|---|--:|--:|--:|--:|---|\n"
    )
    notes = "".join(f"{note}.\n" for note in document["notes"])
    method = _METHOD.format(least=document["least"], most=document["most"])
    return f"{_place(document)}\n\n{head}{rows}\n{method}{notes}"


def _rows(result: Mapping[str, Any]) -> Iterator[str]:
    for place, (name, found) in enumerate(result["clocks"].items()):
        cells = [result["function"] if not place else "", name, str(len(found["rounds_s"]))]
        cells.append(f"{1e3 * found['median_s']:.4g} ms")
        if place:
            cells += [f"{found['difference']:+.1%}".replace("-", "−"), f"{result['noise']:.1%}"]
            cells.append(found["agrees"])
        else:
            cells += ["", f"{result['noise']:.1%}", ""]
        yield f"| {' | '.join(cells)} |\n"


def _place(document: Mapping[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    gpus = [gpu["name"] for gpu in machine["gpus"]] if document["device"] == "cuda" else []
    where = ", ".join([*gpus, machine["cpu"]["model"] or "an unknown CPU"])
    return (
        f"{where}; Python {versions['python']}, torch {versions['torch']}, stepscope "
        f"{versions['stepscope']} at {versions['commit'] or 'an unknown commit'}; "
        f"{document['date']}; `{document['command']}`"
    )
