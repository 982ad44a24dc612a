"""Two sides beside each other: phases and idle time, memory, energy, GPU use, losses, settings."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Final

from stepscope.compare.sides import Side
from stepscope.record.row_log import STEP_PHASES
from stepscope.results.comparison import (
    AmountChange,
    LossComparison,
    LossState,
    PhaseChange,
    Quantity,
    Setting,
    SettingDifference,
    SettingPart,
    SettingValue,
    Unit,
)

Sides = Sequence[Side]
Losses = Sequence[float | None]
_CLOSE: Final = 0.01  # relative difference up to which two losses count as close
_UNITS: Final = {
    Quantity.PEAK_MEMORY: Unit.BYTES,
    Quantity.RESERVED_MEMORY: Unit.BYTES,
    Quantity.ENERGY: Unit.JOULES,
    Quantity.GPU_BUSY: Unit.SHARE,
    Quantity.KERNELS: Unit.COUNT,
}


def phase_changes(base: Sides, other: Sides, scale: float = 1.0) -> tuple[PhaseChange, ...]:
    """Mean time of each phase over the runs of a side; empty where a side has other results.

    `scale` brings the other's steps to as many samples as the base's.
    """
    ours, theirs = _phase_means(base), _phase_means(other)
    if ours is None or theirs is None:
        return ()
    return _changes({name: (ours[name], theirs[name] * scale) for name in STEP_PHASES})


def idle_changes(base: Sides, other: Sides, scale: float = 1.0) -> tuple[PhaseChange, ...]:
    """Idle time of the device by cause, in the recorded steps."""
    ours, theirs = _idle_means(base), _idle_means(other)
    if ours is None or theirs is None:
        return ()
    return _changes({name: (ours[name], theirs.get(name, 0.0) * scale) for name in ours})


def _changes(pairs: dict[str, tuple[float, float]]) -> tuple[PhaseChange, ...]:
    wholes = [sum(pair[place] for pair in pairs.values()) or 1.0 for place in (0, 1)]
    return tuple(
        PhaseChange(name, ours, theirs, theirs - ours, ours / wholes[0], theirs / wholes[1])
        for name, (ours, theirs) in pairs.items()
        if ours or theirs
    )


def _phase_means(sides: Sides) -> dict[str, float] | None:
    runs = [phases for side in sides if (phases := side.phases_ms()) is not None]
    if not runs or len(runs) < len(sides):
        return None
    return {name: fmean(float(run[name]) for run in runs) for name in STEP_PHASES}


def _idle_means(sides: Sides) -> dict[str, float] | None:
    known = []
    for window in (side.window() for side in sides):
        if window is not None and None not in window["idle_ns"].values():
            steps = window["steps"]["count"]
            known.append({name: ns / steps / 1e6 for name, ns in window["idle_ns"].items()})
    if not known:
        return None
    return {name: fmean(one.get(name, 0.0) for one in known) for name in known[0]}


def amount_changes(base: Sides, other: Sides) -> tuple[AmountChange, ...]:
    """The quantities known of both sides: the highest peak of a side, the mean of all else."""
    found = []
    for quantity, unit in _UNITS.items():
        how = max if unit is Unit.BYTES else fmean
        ours, theirs = (_over(sides, quantity, how) for sides in (base, other))
        if ours is not None and theirs is not None:
            found.append(AmountChange(quantity, unit, ours, theirs))
    return tuple(found)


def _over(sides: Sides, quantity: Quantity, how: Callable[[list[float]], float]) -> float | None:
    values = [value for side in sides if (value := side.amount(quantity)) is not None]
    return float(how(values)) if values else None


def compare_losses(base: Sequence[Losses], other: Sequence[Losses]) -> LossComparison | None:
    """The first runs of each side; None where there are no losses to compare."""
    found = _pair(base[0], other[0]) if base and other else None
    if found is None:
        return None
    controls = [_pair(side[0], side[1]) for side in (base, other) if len(side) > 1]
    known = [one.state for one in controls if one is not None]
    control = max(known, key=list(LossState).index) if known else None
    return LossComparison(found.state, found.step, found.largest, found.steps, control)


def _pair(ours: Losses, theirs: Losses) -> LossComparison | None:
    gaps = [_gap(a, b) for a, b in zip(ours, theirs, strict=False)]
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return None
    largest = max(known)
    first = next((n for n, gap in enumerate(gaps, 1) if gap is not None and gap > _CLOSE), None)
    state = LossState.CLOSE if first is None else LossState.DIFFER
    state = LossState.IDENTICAL if largest == 0 else state
    return LossComparison(state, first, largest if isfinite(largest) else None, len(known))


def _gap(a: float | None, b: float | None) -> float | None:
    """The relative difference; None where neither is known, infinite where only one is."""
    if a is None and b is None:
        return None
    if a is None or b is None:
        return float("inf")
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def setting_differences(base: Sides, other: Sides) -> tuple[SettingDifference, ...]:
    """Settings that differ between the first results; of different kinds only those both have."""
    ours, theirs = base[0].settings(), other[0].settings()
    if base[0].kind is not other[0].kind:
        both = ours.keys() & theirs.keys()
        ours, theirs = ({n: v for n, v in one.items() if n in both} for one in (ours, theirs))
    return _differences(ours, theirs)


def environment_differences(
    base: Sides, other: Sides
) -> tuple[tuple[SettingDifference, ...], tuple[str, ...]]:
    """What differs in machine and software, and the names of what is the same."""
    ours, theirs = base[0].environment(), other[0].environment()
    same = tuple(name for name, one in ours.items() if one is not None and theirs.get(name) == one)
    named = (
        {Setting(SettingPart.MACHINE, name): one for name, one in values.items()}
        for values in (ours, theirs)
    )
    return _differences(*named), same


def _differences(
    ours: Mapping[Setting, SettingValue], theirs: Mapping[Setting, SettingValue]
) -> tuple[SettingDifference, ...]:
    names = [*ours, *(name for name in theirs if name not in ours)]
    return tuple(
        SettingDifference(
            name.part, name.key, name.index, name.owner, ours.get(name), theirs.get(name)
        )
        for name in names
        if ours.get(name) != theirs.get(name)
    )
