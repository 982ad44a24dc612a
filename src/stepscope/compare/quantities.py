"""What two sides differ in: phases and idle time, memory, energy, GPU use, losses, settings."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from statistics import fmean
from typing import Final

from msgspec.structs import asdict, replace

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
    """Mean time of each phase over a side's runs; empty if a side has other results.

    `scale` scales the other's steps to the base's samples per step.
    """
    return _changes(_phase_means(base), _phase_means(other), scale)


def idle_changes(base: Sides, other: Sides, scale: float = 1.0) -> tuple[PhaseChange, ...]:
    """Idle time of the device by cause, in the recorded steps."""
    return _changes(_idle_means(base), _idle_means(other), scale)


def _phase_means(sides: Sides) -> Mapping[str, float]:
    runs = [side.phases_ms for side in sides if side.phases_ms is not None]
    if len(runs) < len(sides):
        return {}
    return {name: fmean(float(run[name]) for run in runs) for name in STEP_PHASES}


def _idle_means(sides: Sides) -> Mapping[str, float]:
    known = []
    for window in (side.window for side in sides if side.window is not None):
        count, idle = window.steps.count, window.idle_ns
        known.append({name: ns / count / 1e6 for name, ns in idle.items() if ns is not None})
    known = [one for one in known if one]
    return {name: fmean(one.get(name, 0.0) for one in known) for name in known[0]} if known else {}


def _changes(
    base: Mapping[str, float], other: Mapping[str, float], scale: float
) -> tuple[PhaseChange, ...]:
    if not base or not other:
        return ()
    pairs = {name: (ours, other.get(name, 0.0) * scale) for name, ours in base.items()}
    wholes = [sum(pair[place] for pair in pairs.values()) or 1.0 for place in (0, 1)]
    return tuple(
        PhaseChange(name, ours, theirs, theirs - ours, ours / wholes[0], theirs / wholes[1])
        for name, (ours, theirs) in pairs.items()
        if ours or theirs
    )


def amount_changes(base: Sides, other: Sides) -> tuple[AmountChange, ...]:
    """The quantities known for both sides: a side's highest peak, and means of all others."""
    found = []
    for quantity, unit in _UNITS.items():
        ours, theirs = (
            [value for side in sides if (value := side.amounts.get(quantity)) is not None]
            for sides in (base, other)
        )
        if ours and theirs:
            how = max if unit is Unit.BYTES else fmean
            found.append(AmountChange(quantity, unit, float(how(ours)), float(how(theirs))))
    return tuple(found)


def compare_losses(base: Sequence[Losses], other: Sequence[Losses]) -> LossComparison | None:
    """Compares the first runs of each side; None without losses."""
    found = _pair(base[0], other[0]) if base and other else None
    if found is None:
        return None
    controls = [_pair(side[0], side[1]) for side in (base, other) if len(side) > 1]
    states = [one.state for one in controls if one is not None]
    return replace(found, control=max(states, key=list(LossState).index, default=None))


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
    """The relative difference; None if neither is known, infinite if only one is."""
    if a is None or b is None:
        return None if a is b else inf
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def setting_differences(base: Sides, other: Sides) -> tuple[SettingDifference, ...]:
    """Settings that differ between the first results; for different kinds, only those both have."""
    ours, theirs = base[0].settings, other[0].settings
    if base[0].kind is not other[0].kind:
        both = ours.keys() & theirs.keys()
        ours, theirs = ({n: v for n, v in one.items() if n in both} for one in (ours, theirs))
    return _differences(ours, theirs)


def environment_differences(
    base: Sides, other: Sides
) -> tuple[tuple[SettingDifference, ...], tuple[str, ...]]:
    """What differs in machine and software, and the names of what does not."""
    ours, theirs = base[0].environment, other[0].environment
    same = tuple(name for name, one in ours.items() if one is not None and theirs.get(name) == one)
    named = [
        {Setting(SettingPart.MACHINE, name): one for name, one in values.items()}
        for values in (ours, theirs)
    ]
    return _differences(*named), same


def _differences(
    ours: Mapping[Setting, SettingValue], theirs: Mapping[Setting, SettingValue]
) -> tuple[SettingDifference, ...]:
    both = {name: (ours.get(name), theirs.get(name)) for name in (*ours, *theirs)}
    return tuple(
        SettingDifference(**asdict(name), base=base, other=other)
        for name, (base, other) in both.items()
        if base != other
    )
