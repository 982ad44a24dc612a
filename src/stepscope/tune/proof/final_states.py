"""Compares how trials ended: state, output and saved files. Only what trials of the baseline agree
on counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf, isfinite, sqrt
from typing import Final, NamedTuple

from stepscope.measure.trial.final_state import PICKLE, FinalState
from stepscope.measure.trial.printed import Place
from stepscope.measure.trial.record import Trial, Trials
from stepscope.record.facts import TensorState
from stepscope.record.kinds import EndPart
from stepscope.record.proof import Because, ProofReason
from stepscope.tune.proof.effects import RoundingLimits

_Key = tuple[EndPart, str, str | int]
"""A tensor; a file and its part; a form of line and the index of a number in it; or a form of line
and `_WORDS`."""
_WORDS: Final = "words"
_Values = dict[_Key, int | tuple[str, ...]]
Pairs = Sequence[tuple[Trial, Trial]]
_TIMES: Final = 4.0  # times the limit of gradient norms: a state has gone through all steps


class _Unlike(NamedTuple):
    """The trials in which something differs, and by what share of its size, if known."""

    base: Trial
    variant: Trial
    share: float | None = None


@dataclass(frozen=True, slots=True)
class EndComparison:
    """Which parts of the trials' final states could be compared, which could not, and how they
    differ."""

    compared: tuple[EndPart, ...] = ()
    missing: tuple[EndPart, ...] = ()  # the baseline has this part
    because: Because | None = None


@dataclass(frozen=True)
class FinalStates:
    """Reads how trials ended. Parts in which equal baseline trials, among those `known`, disagree
    are never compared."""

    read: Callable[[Trial], FinalState] = lambda _: FinalState()
    known: Trials = ()
    objects: bool = True
    """Whether saved objects are compared besides saved tensors. They hold optimizers' flags too,
    which inexact fixes may set."""

    def tensors_only(self) -> "FinalStates":
        return replace(self, objects=False)

    def compare_exact(self, pairs: Pairs, repeats: Pairs) -> EndComparison:
        """Compares bit for bit each baseline with its variant; `repeats` are pairs of baseline
        trials."""
        volatile = self._volatile | self._disagreeing(repeats)
        compared: set[EndPart] = set(EndPart)
        unlike: dict[_Key, _Unlike] = {}
        for base, variant in pairs:
            ours, theirs = self._values(base), self._values(variant)
            shared = [key for key in _comparable(ours, theirs) if key not in volatile]
            compared &= {part for part, *_ in shared}
            for key in shared:
                if ours[key] != theirs.get(key):
                    unlike.setdefault(key, _Unlike(base, variant))
        return self._told([base for base, _ in pairs], compared, unlike)

    def compare_numeric(
        self, base: Trials, control: Trials, variant: Trials, limit: RoundingLimits, dtype: str
    ) -> EndComparison:
        """Compares within rounding, and counts exactly; a difference must show in every seed whose
        trials ended at the compared step. One trial per seed, in the same order; `control` may be
        empty."""
        if len(base) < 2:
            return EndComparison()
        seeds = [*zip(base, variant, *([control] if control else []), strict=False)]
        whole = [trials for trials in seeds if all(one.proof.ending for one in trials)]
        if len(whole) < 2:  # two seeds separate cause from chance
            return self._told(base, set(), {})
        base, variant, control = ([*side] for side in (*zip(*whole, strict=True), ())[:3])
        sides = [
            [self._final_state(trial).tensors for trial in side]
            for side in (base, control, variant)
        ]
        usual = [_usual_sizes(tensors) for tensors in sides[0]]
        compared: set[EndPart] = set()
        unlike: dict[_Key, _Unlike] = {}
        for key in sides[0][0]:
            if not all(key in tensors for side in sides for tensors in side):
                continue
            ours, shown, theirs = ([tensors[key] for tensors in side] for side in sides)
            if key[0] is EndPart.OPTIMIZER and ours[0].count == 1 and dtype == "float16":
                continue  # loss scaling skips steps
            sizes = [size.get(_kind(key), 0.0) for size in usual]
            share = _share_beyond(ours, shown, theirs, sizes, limit)
            if share is not None:
                compared.add(key[0])
            if share:
                unlike[*key, 0] = _Unlike(base[0], variant[0], share)
        numbers = [self._final_state(trial).printed.numbers for trial in (*base, *control)]
        others = [self._final_state(trial).printed.numbers for trial in variant]
        for place, told in numbers[0].items():
            same = all(other.get(place) == told for other in numbers)
            if not same or not self._final_state(base[0]).printed.is_count(place):
                continue
            if all(len(other.get(place, ())) == len(told) for other in others):
                compared.add(EndPart.OUTPUT)
                if all(other[place] != told for other in others):
                    unlike[EndPart.OUTPUT, *place] = _Unlike(base[0], variant[0])
        return self._told(base, compared, unlike)

    def _final_state(self, trial: Trial) -> FinalState:
        """How a trial ended; empty if it did not end at the compared step."""
        return self.read(trial) if trial.proof.ending else FinalState()

    def _values(self, trial: Trial) -> _Values:
        """Everything that can be compared bit for bit."""
        final_state = self._final_state(trial)
        found: _Values = {(*key, 0): one.digest for key, one in final_state.tensors.items()}
        for file, parts in final_state.saved.items():
            kept = {name: one for name, one in parts.items() if self.objects or name != PICKLE}
            found |= {(EndPart.FILES, file, name): one for name, one in kept.items()}
        printed = final_state.printed
        found |= {(EndPart.OUTPUT, *place): told for place, told in printed.numbers.items()}
        return found | {(EndPart.OUTPUT, form, _WORDS): n for form, n in printed.words.items()}

    @cached_property
    def _volatile(self) -> set[_Key]:
        alike: dict[bytes, list[Trial]] = {}
        for trial in self.known:
            alike.setdefault(trial.request.key(), []).append(trial)
        return self._disagreeing([pair for trials in alike.values() for pair in pairwise(trials)])

    def _disagreeing(self, repeats: Pairs) -> set[_Key]:
        """What only one of two trials has, or what differs between them."""
        found: set[_Key] = set()
        for one, again in repeats:
            ours, theirs = self._values(one), self._values(again)
            if ours and theirs:
                known = ours.keys() | theirs.keys()
                found |= {key for key in known if ours.get(key) != theirs.get(key)}
        return found

    def _told(
        self, base: Iterable[Trial], compared: set[EndPart], unlike: Mapping[_Key, _Unlike]
    ) -> EndComparison:
        had = {part for trial in base for part, *_ in self._values(trial)}
        return EndComparison(
            tuple(part for part in EndPart if part in compared),
            tuple(part for part in EndPart if part in had - compared),
            self._because(unlike) if unlike else None,
        )

    def _because(self, unlike: Mapping[_Key, _Unlike]) -> Because:
        """The first difference, in the order of the parts."""
        part = min((key[0] for key in unlike), key=[*EndPart].index)
        key, found = next((key, one) for key, one in unlike.items() if key[0] is part)
        name: str | None = key[1]
        other = None
        theirs, ours = (self._final_state(trial).printed for trial in (found.variant, found.base))
        if part is EndPart.OUTPUT and isinstance(key[2], int):
            place: Place = key[1], key[2]
            name, other = theirs.lines_apart(place, ours)
        elif part is EndPart.OUTPUT:
            name, other = theirs.new_line(ours), ours.lines[key[1]][0]
        share = found.share if found.share is not None and isfinite(found.share) else None
        count = len({key[1] for key in unlike if key[0] is part})
        return Because(
            ProofReason.OTHER_ENDING, value=share, count=count, detail=name, part=part, other=other
        )


def _comparable(ours: _Values, theirs: _Values) -> Iterator[_Key]:
    """What can be compared. Numbers of a line printed more or less often cannot; its words can if
    it is gone, or if others stand in their place: both print as many lines."""
    our_lines, their_lines = (_count_lines(values) for values in (ours, theirs))
    for key, one in ours.items():
        other = theirs.get(key)
        if _is_words(key):
            gone = other is None and their_lines
            comparable = gone or one == other or our_lines == their_lines
        elif isinstance(one, tuple) and isinstance(other, tuple):
            comparable = len(one) == len(other)
        else:
            comparable = other is not None
        if comparable:
            yield key


def _is_words(key: _Key) -> bool:
    return key[0] is EndPart.OUTPUT and key[2] == _WORDS


def _count_lines(values: _Values) -> int:
    """How many lines with words were printed."""
    return sum(n for key, n in values.items() if _is_words(key) and isinstance(n, int))


def _kind(key: tuple[EndPart, str]) -> tuple[EndPart, str]:
    """A tensor's kind, whatever its layer: `bias`, `running_mean`, `exp_avg`."""
    return key[0], key[1].rpartition(".")[2]


def _usual_sizes(
    tensors: Mapping[tuple[EndPart, str], TensorState],
) -> dict[tuple[EndPart, str], float]:
    """The root mean square of all values of each kind."""
    sums: dict[tuple[EndPart, str], tuple[float, int]] = {}
    for key, one in tensors.items():
        if one.norm is not None:
            square, count = sums.get(_kind(key), (0.0, 0))
            sums[_kind(key)] = square + one.norm**2, count + one.count
    return {kind: sqrt(square / count) for kind, (square, count) in sums.items()}


def _share_beyond(
    base: Sequence[TensorState],
    control: Sequence[TensorState],
    variant: Sequence[TensorState],
    usual: Sequence[float],
    limit: RoundingLimits,
) -> float | None:
    """By what share of its size a tensor is off in every seed, if rounding does not explain it;
    0.0: rounding explains it; None: unknown. `usual` is the size of a value of its kind."""
    if base[0].integral:
        digests = [one.digest for one in base]
        steady = digests == [one.digest for one in control] or len({*digests}) == 1
        if not steady:
            return None
        pairs = zip(variant, digests, strict=True)
        return inf if all(one.digest != digest for one, digest in pairs) else 0.0
    shown = [_distance(*three) for three in zip(base, control, usual, strict=False)]
    found = [_distance(*three) for three in zip(base, variant, usual, strict=True)]
    if not shown or None in found or None in shown:
        return None
    most = max(one for one in shown if one is not None)
    least = min(one for one in found if one is not None)
    return least if least > max(_TIMES * limit.first_norm, limit.growth * most) else 0.0


def _distance(base: TensorState, other: TensorState, usual: float) -> float | None:
    """The distance as a share of the baseline's norm, or of its kind's usual norm if that is
    larger: a bias before a normalisation has gradients of pure rounding, which the control changes
    far less (10⁸ times was seen). Infinite if the other has NaN; None if the baseline has, or is
    zero."""
    size = max(base.norm or 0.0, usual * sqrt(base.count))
    if not size or base.sketch is None:
        return None
    if other.sketch is None or len(other.sketch) != len(base.sketch):
        return inf
    squares = [(one - two) ** 2 for one, two in zip(base.sketch, other.sketch, strict=True)]
    return sqrt(sum(squares) / len(squares)) / size
