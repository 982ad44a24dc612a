"""Verdicts of `compare` on processes that do not differ, and on changes put into them.

The first processes of a program stand for what the machine's noise was measured with; sides are
made of the rest. A change is planted as a factor on every step of one side; a change of three noise
floors is one floor three times over, the floor being what `compare` says it stands on, or the
program's own over all its processes where that is larger.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    from stepscope.results.comparison import ItemVerdict

Processes = Sequence[npt.NDArray[Any]]
Split = tuple[tuple[int, ...], tuple[int, ...]]
EARLIER = 6
"""Processes that the stored noise floor is from."""
SIDES = (1, 2, 3, 4, 5)
TIMES = (0.5, 1.0, 3.0)
"""Planted changes, in noise floors."""
_SPLITS = 60  # of one program and size
FEW_FLOOR, LEAST = 0.05, 0.02  # below which nothing is claimed of few and of many processes
_SEED = 8


def splits(processes: int, side: int) -> list[Split]:
    """Two groups of `side` without a process in common: those that alternate in time, then others
    at random, each once."""
    random = Random(_SEED)
    found: dict[Split, None] = {}
    for at in range(0, processes - 2 * side + 1, 2 * side):
        found[tuple(range(at, at + 2 * side, 2)), tuple(range(at + 1, at + 2 * side, 2))] = None
    for _ in range(20 * _SPLITS):
        chosen = random.sample(range(processes), 2 * side)
        if len(found) >= _SPLITS:
            break
        found[tuple(sorted(chosen[:side])), tuple(sorted(chosen[side:]))] = None
    return list(found)


def judged(programs: Mapping[str, Processes]) -> dict[str, Any]:
    """Counts of verdicts by program, size of the sides and planted change."""
    return {
        "series": sum(map(len, programs.values())),
        "programs": [_program(name, several) for name, several in programs.items()],
    }


def _program(name: str, several: Processes) -> dict[str, Any]:
    from stepscope.stats.verdict import noise_floor

    floor = noise_floor([[one.tolist() for one in several]])
    known = noise_floor([[one.tolist() for one in several[:EARLIER]]])
    assert floor is not None
    assert known is not None
    return {
        "name": name,
        "processes": len(several),
        "mean_ms": [round(float(one.mean()), 4) for one in several],
        "noise_floor": floor,
        "stored_floor": known,
        "verdicts": list(_verdicts(several[EARLIER:], floor, known)),
    }


def _verdicts(rest: Processes, floor: float, known: float) -> Iterator[dict[str, Any]]:
    from stepscope.hardware.noise_floors import NoiseFloor

    for side in (size for size in SIDES if 2 * size <= len(rest)):
        # Three processes a side bring their own floor: nothing stored is asked for.
        for stored in (NoiseFloor(known, EARLIER), None) if side < 3 else (None,):
            counts = {times: Counter[str]() for times in (0.0, *TIMES)}
            for split in splits(len(rest), side):
                base, other = ([rest[place] for place in group] for group in split)
                same = compared(base, other, stored)
                step = 1 + max(floor, same.noise_floor, FEW_FLOOR if side < 3 else LEAST)
                counts[0.0][same.verdict] += 1
                for times in TIMES:
                    slowed = [one * step**times for one in other]
                    counts[times][compared(base, slowed, stored).verdict] += 1
            for times, found in counts.items():
                yield {"side": side, "stored": stored is not None, "planted": times} | {
                    "counts": dict(found)
                }


def compared(base: Processes, other: Processes, stored: Any) -> "ItemVerdict":
    """As `stepscope compare` judges it."""
    from stepscope.compare.sides import Item
    from stepscope.compare.verdicts import Pair, judge_pair

    sides = (tuple(tuple(one.tolist()) for one in side) for side in (base, other))
    pair = Pair(*(Item("", "", series, None, "training") for series in sides))
    return judge_pair(pair, stored, recorded=False)


def sums(document: Mapping[str, Any]) -> dict[tuple[int, bool, float], Counter[str]]:
    """Counts over all programs, by size of the sides, whether a floor was stored, and change."""
    found: dict[tuple[int, bool, float], Counter[str]] = {}
    for program in document["programs"]:
        for one in program["verdicts"]:
            key = one["side"], one["stored"], one["planted"]
            found.setdefault(key, Counter()).update(one["counts"])
    return found


def table(document: Mapping[str, Any]) -> str:
    """Markdown: what was recorded, then shares of verdicts."""
    lines = ["| program | processes | step ms | noise floor |", "| --- | ---: | ---: | ---: |"]
    for one in document["programs"]:
        low, high = min(one["mean_ms"]), max(one["mean_ms"])
        lines.append(
            f"| {one['name']} | {one['processes']} | {low:.3g}–{high:.3g}"
            f" | {one['noise_floor']:.0%} |"
        )
    heads = ("processes a side", "floor", "planted", "FASTER", "SLOWER", "SAME", "UNCLEAR", "of")
    lines += ["", f"| {' | '.join(heads)} |", "| ---: | --- | --- |" + " ---: |" * 5]
    for (side, stored, times), counts in sums(document).items():
        whole = sum(counts.values())
        shares = [f"{counts[name] / whole:.1%}" for name in heads[3:7]]
        floor = "stored" if stored and side < 3 else "own" if side > 2 else "none"
        planted = f"{times:g} floors" if times else "nothing"
        lines.append(f"| {side} | {floor} | {planted} | {' | '.join(shares)} | {whole} |")
    return "\n".join(lines) + "\n"
