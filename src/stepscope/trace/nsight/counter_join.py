"""Nsight Compute counters joined to a timeline's kernels by name, size and launch order.

Tools print kernels differently: Kineto writes `void at::native::(anonymous
namespace)::k<float>(float*, long)`, Nsight Compute `void at::<unnamed>::k<float>(T1 *, long)`,
or only `k`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from operator import methodcaller

import numpy as np

from stepscope.record.timeline import NOTHING, Column, DeviceKind, Geometry, Timeline, distinct_rows
from stepscope.trace.nsight.counters import KernelCounters

_UNNAMED = re.compile(r"<unnamed>|\(anonymous namespace\)")
_WORD = re.compile(r"[A-Za-z_]\w+")
_PRINTED = re.compile(r"T\d+|instance|unnamed|namespace|anonymous|lambda|operator|const|void")


def kernel_base_name(name: str) -> str:
    """The function's own name: without result, namespaces, template arguments and parameters."""
    depth = 0
    own: list[str] = []
    for character in _UNNAMED.sub("", name):
        if character in "<([{":
            if character == "(" and depth == 0 and own:
                break
            depth += 1
        elif character in ">)]}":
            depth = max(depth - 1, 0)
        elif depth == 0:
            own.append(character)
    return "".join(own).strip().rsplit("::", 1)[-1].rsplit(" ", 1)[-1] or name


def names_agree(counted: str, recorded: str) -> bool:
    """Whether the words of Nsight Compute's name all stand in the recorded one.

    It leaves namespaces out and writes T1 for a template's type, but invents no other word. A
    name that came without its template arguments agrees with all of its base.
    """
    if "<" not in recorded:
        return True
    words = {w for w in _WORD.findall(counted) if not _PRINTED.fullmatch(w)}
    return words <= set(_WORD.findall(recorded))


Size = tuple[tuple[int, ...] | None, tuple[int, ...] | None]  # grid and block
Key = tuple[str, Size]
Rule = Callable[[str], str]
_whole_name: Rule = methodcaller("replace", " ", "")  # tools set blanks differently

_SPREAD = 2.0  # repetitions of a launch take times within this factor of each other


@dataclass(slots=True)
class JoinedCounters:
    """Which kernels have counters, and what could not be joined without guessing."""

    counters: dict[int, KernelCounters] = field(default_factory=dict)  # by index of device event
    by_name: int = 0  # of these kernels, joined by the whole name
    by_base: int = 0  # of these kernels, joined by the function's own name
    repeated: int = 0  # of these kernels, given the counters of another repetition
    ambiguous: int = 0  # kernels left out: no telling which counters are theirs
    contradicted: int = 0  # kernels left out: in order comes a counter of another template
    other_size: int = 0  # counters left out: their kernel never ran with that grid and block
    kernels_without: int = 0  # kernels without counters, for whatever reason
    counters_without: int = 0  # counters without a kernel, for whatever reason


def join_counters(counters: Sequence[KernelCounters], timeline: Timeline) -> JoinedCounters:
    """Counters by name, size and order of launch.

    Where one side has a whole multiple of the other's launches, steps repeat and so do their
    counters, if the times agree; any other difference in number is ambiguous and left alone.
    """
    joined = JoinedCounters()
    launches = _Launches(timeline)
    left = dict(enumerate(counters))
    for rule in (_whole_name, kernel_base_name):
        counted: dict[Key, list[int]] = defaultdict(list)
        for n, one in left.items():
            counted[rule(one.kernel), launches.size(one.grid, one.block)].append(n)
        last = rule is kernel_base_name
        for key, kernels in launches.grouped(rule, counted, joined.counters):
            _pair(launches, kernels, counted[key], left, joined, last)
        if not last:
            joined.by_name = len(joined.counters)
    joined.by_base = len(joined.counters) - joined.by_name
    joined.other_size = sum(launches.ran_otherwise(one) for one in left.values())
    joined.kernels_without = len(launches.order) - len(joined.counters)
    joined.counters_without = len(left)
    return joined


class _Launches:
    """The kernels of a timeline in the order of their launches, which is that of ncu's ids."""

    def __init__(self, timeline: Timeline) -> None:
        device = timeline.device
        launched = device.start.copy()
        linked = device.launch != NOTHING
        launched[linked] = timeline.host.start[device.launch[linked]]
        order = np.lexsort((device.start, launched))
        self.order: Column = order[device.kind[order] == DeviceKind.KERNEL]
        kinds, self._which = distinct_rows([device.name[self.order], device.geometry[self.order]])
        by_kind = np.argsort(self._which, kind="stable")
        self._of_kind = np.split(by_kind, np.cumsum(np.bincount(self._which))[:-1])
        self._names = [timeline.name_of(name) for name, _ in kinds]
        known = [Geometry() if g == NOTHING else timeline.geometries[g] for _, g in kinds]
        sizes = [(geometry.grid, geometry.block) for geometry in known]
        self._sized = any(size != (None, None) for size in sizes)
        self._keys = {(kernel_base_name(n), s) for n, s in zip(self._names, sizes, strict=True)}
        self._bases = {base for base, _ in self._keys}
        self._sizes = sizes
        self._kind_of = np.zeros(len(device), np.int32)
        self._kind_of[self.order] = self._which
        self._duration = device.duration

    def size(self, grid: tuple[int, ...] | None, block: tuple[int, ...] | None) -> Size:
        """What to compare; nothing where the timeline does not have it."""
        return (grid, block) if self._sized else (None, None)

    def name(self, kernel: int) -> str:
        return self._names[int(self._kind_of[kernel])]

    def alike(self, kernels: Sequence[int]) -> bool:
        """Whether these can be repetitions of one launch: the same template, similar times."""
        short, long = np.quantile(self._duration[list(kernels)], (0.1, 0.9))
        one_template = len({self._names[k] for k in np.unique(self._kind_of[list(kernels)])}) == 1
        return one_template and bool(long <= _SPREAD * short)

    def grouped(
        self, rule: Rule, wanted: Container[Key], done: Container[int]
    ) -> Iterator[tuple[Key, list[int]]]:
        """The kernels not yet done that have a wanted name under the rule and size."""
        kinds: dict[Key, list[int]] = defaultdict(list)
        for n, (name, size) in enumerate(zip(self._names, self._sizes, strict=True)):
            if (key := (rule(name), size)) in wanted:
                kinds[key].append(n)
        for key, same in kinds.items():
            group = self.order[np.sort(np.concatenate([self._of_kind[n] for n in same]))].tolist()
            if left := [kernel for kernel in group if kernel not in done]:
                yield key, left

    def ran_otherwise(self, one: KernelCounters) -> bool:
        """Whether the kernel ran, but never in this size."""
        base = kernel_base_name(one.kernel)
        return base in self._bases and (base, self.size(one.grid, one.block)) not in self._keys


def _pair(
    launches: _Launches,
    kernels: Sequence[int],
    counted: Sequence[int],
    left: dict[int, KernelCounters],
    joined: JoinedCounters,
    last: bool,
) -> None:
    """Join the launches of one key in order, and take the counters used out of `left`."""
    fewer, more = sorted((len(kernels), len(counted)))
    if more % fewer:
        joined.ambiguous += len(kernels) if last else 0
        return
    chosen = [left[n] for n in counted[: len(kernels)]]
    for place, one in enumerate(chosen):
        repetitions = kernels[place :: len(chosen)]
        if not launches.alike(repetitions):
            joined.ambiguous += len(repetitions) if last else 0
        elif last and not names_agree(one.kernel, launches.name(repetitions[0])):
            joined.contradicted += len(repetitions)
        else:
            joined.counters |= dict.fromkeys(repetitions, one)
            joined.repeated += len(repetitions) - 1
            for n in counted[place :: len(chosen)]:
                left.pop(n)
