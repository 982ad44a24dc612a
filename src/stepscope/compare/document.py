"""The whole comparison of two sides, and the exit code for a pipeline."""

from collections.abc import Iterator, Sequence

from stepscope.compare.kernels import compare_kernels, typical_step
from stepscope.compare.quantities import (
    amount_changes,
    compare_losses,
    environment_differences,
    idle_changes,
    phase_changes,
    setting_differences,
)
from stepscope.compare.sides import Side
from stepscope.compare.verdicts import judge_pair, pair_items, stored_floor
from stepscope.compare.why import find_causes
from stepscope.record.errors import UsageError
from stepscope.results.comparison import (
    Comparison,
    ItemVerdict,
    KernelComparison,
    Note,
    NoteKind,
    ResultKind,
    SideNames,
    decisive_item,
)

_FINE, _REGRESSION, _UNCLEAR = 0, 1, 3


def parse_limit(text: str) -> float:
    """`5%` or `0.05`: the share a step may take longer. Raises UsageError."""
    wrong = UsageError(f"--max-regression takes a share such as 5% or 0.05, not {text!r}")
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        raise wrong from None
    if rest or not 0 <= value < 1:
        raise wrong
    return value


def exit_code(items: Sequence[ItemVerdict], limit: float | None, strict: bool) -> int:
    """1 if even the near end of an interval exceeds the limit; 3 if `strict` and unclear."""
    if limit is not None and any(item.low > limit for item in items):
        return _REGRESSION
    return _UNCLEAR if strict and any(item.verdict == "UNCLEAR" for item in items) else _FINE


def compare_results(
    base: Sequence[Side],
    other: Sequence[Side],
    max_regression: float | None = None,
    strict: bool = False,
) -> Comparison:
    """The verdict, what changed and why. `max_regression` is a share of the step time.

    Raises UsageError if the two cannot be compared.
    """
    pairs, left_out = pair_items(base, other)
    traced = any(side.kind is ResultKind.TRACE for side in (*base, *other))
    floor = stored_floor(base, other)
    items = tuple(judge_pair(pair, floor, traced, len(pairs)) for pair in pairs)
    chosen = decisive_item(items)
    scale = pairs[0].scale if len(pairs) == 1 else 1.0
    phases, idle = phase_changes(base, other, scale), idle_changes(base, other, scale)
    settings = setting_differences(base, other)
    environment, same = environment_differences(base, other)
    kernels = _kernels(base[0], other[0])
    claimed = chosen.verdict in ("FASTER", "SLOWER")
    causes = find_causes(phases, kernels, settings, idle, claimed) if len(pairs) == 1 else ()
    return Comparison(
        base=SideNames(base[0].kind, tuple(side.name for side in base)),
        other=SideNames(other[0].kind, tuple(side.name for side in other)),
        verdict=chosen.verdict,
        change=chosen.change,
        low=chosen.low,
        high=chosen.high,
        per=chosen.per,
        label=chosen.label,
        max_regression=max_regression,
        strict=strict,
        exit_code=exit_code(items, max_regression, strict),
        items=items,
        left_out=tuple(left_out),
        phases=phases,
        scale=scale,
        kernels=kernels,
        idle=idle,
        amounts=amount_changes(base, other),
        configuration=settings,
        environment=environment,
        environment_same=same,
        losses=compare_losses(
            *([one.losses for one in side if one.losses is not None] for side in (base, other))
        ),
        why=causes,
        notes=tuple(_notes((*base, *other))),
    )


def _kernels(base: Side, other: Side) -> KernelComparison | None:
    """None if one has no window."""
    ours, theirs = base.timeline(), other.timeline()
    if ours is None or theirs is None:
        return None
    return compare_kernels(typical_step(ours, base.stacks()), typical_step(theirs, other.stacks()))


def _notes(sides: Sequence[Side]) -> Iterator[Note]:
    """Each note once, with the results it applies to."""
    if len({side.phases_seen_by for side in sides if side.phases_ms is not None}) > 1:
        yield Note(NoteKind.PHASES_BY_DIFFERENT_CLOCKS)
    names: dict[tuple[NoteKind, str], tuple[str, ...]] = {}
    for note in (note for side in sides for note in side.notes):
        key = note.kind, note.reason
        names[key] = names.get(key, ()) + note.names
    for (kind, reason), where in names.items():
        yield Note(kind, where, reason)
