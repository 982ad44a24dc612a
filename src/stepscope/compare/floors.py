"""Which noise floor a comparison stands on."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stepscope.compare.sides import Item, Side, merged
from stepscope.hardware.noise_cache import FEWEST, Floor, known_floor, machine_key, remember
from stepscope.stats.intervals import FEW_FLOOR, UNKNOWN_FLOOR, Processes, blocks
from stepscope.stats.steady import unstable
from stepscope.stats.verdict import noise_floor

Stored = Callable[[Item], Floor | None]
"""What is known of the noise of an item, from earlier."""


_MANY_TIMES: Final = 30  # on a machine with three times as much to do as it has cores


class Standing(NamedTuple):
    """`share` is the floor; `source` says in words where it is from."""

    share: float
    source: str


def standing(base: Processes, other: Processes, stored: Floor | None, recorded: bool) -> Standing:
    """Of three processes a side their own noise; else what was stored; else what is assumed.

    `recorded`: times are of a few recorded steps, for which nothing is stored.
    """
    fewest = min(len(base), len(other))
    own = noise_floor([base, other]) if fewest >= FEWEST else None
    if own is not None:
        return Standing(own, f"their noise floor is {_percent(own)}")
    if recorded:
        return _assumed([], UNKNOWN_FLOOR)
    if stored is None:
        return _assumed([*base, *other], UNKNOWN_FLOOR if fewest == 1 else FEW_FLOOR)
    whose = "of this" if stored.same else "of other programs"
    return Standing(
        stored.share,
        f"this machine's noise floor is taken to be {_percent(max(stored.share, FEW_FLOOR))},"
        f" from {stored.processes} processes {whose}",
    )


def _assumed(several: Processes, usual: float) -> Standing:
    """Where steps are uneven within a process, processes differ by many times that: what load
    there is changes more slowly than a process lasts. Recordings are too short to tell."""
    uneven = max(map(_between_blocks, several)) if any(map(unstable, several)) else 0.0
    share = max(usual, _MANY_TIMES * uneven)
    why = f", since steps vary by {uneven:.0%} within a process" if uneven else ""
    return Standing(share, f"no noise floor is known for them: {_percent(share)} is assumed{why}")


def _percent(share: float) -> str:
    """`6.2%`, `15%`, `480%`: two digits at least."""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def _between_blocks(series: Sequence[float]) -> float:
    """The standard deviation of blocks of steps, as a share; 0 of too few."""
    means = blocks(series)
    return float(means.std(ddof=1) / means.mean()) if len(means) > 1 else 0.0


def stored_floor(sides: tuple[Side, ...]) -> Stored:
    """Looks items up in the cache of the machine all sides come from; None where they differ."""
    keys = {key for side in sides if (key := side_key(side)) is not None}
    if len(keys) != 1:
        return lambda item: None
    (key,) = keys
    return lambda item: known_floor(key, thing(sides[0], item))


def remember_side(sides: tuple[Side, ...]) -> None:
    """Keep the noise between processes of one side for comparisons to come."""
    keys = {side_key(side) for side in sides}
    (key,) = keys if len(keys) == 1 else (None,)
    if key is None or sides[0].kind == "trace" or len({_program(side) for side in sides}) > 1:
        return
    for item in merged(sides).values():
        means = [sum(series) / len(series) for series in item.series]
        remember(key, thing(sides[0], item), means)


def side_key(side: Side) -> str | None:
    """The machine and device of a result; None of a trace, which does not tell."""
    document = side.document
    if side.kind == "run":
        machine, device = document["config"].get("machine"), document["run"].get("device")
        return machine_key(machine, device) if machine else None
    if side.kind == "trace" or not document.get("machine"):
        return None
    devices = {point["device"] for point in document.get("points", ())}
    device = "cuda" if "cuda" in devices else (document.get("run") or {}).get("device")
    return machine_key(document["machine"], device)


def thing(side: Side, item: Item) -> str:
    """What an item is of: a point of a bench, or a program, whether run or tuned."""
    return f"bench {item.key}" if side.kind == "bench" else f"program {_program(side)}"


def _program(side: Side) -> str:
    """Its name without the folder."""
    run = side.document.get("run") or {}
    return str(run.get("program") or "").replace("\\", "/").rpartition("/")[2]
