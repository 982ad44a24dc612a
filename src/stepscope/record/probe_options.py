"""What `stepscope run` was asked to do, as handed to the child."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from stepscope.record.fix import FixKind


class Wall(StrEnum):
    """What keeps a trial's program and its children from writing elsewhere."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    NONE = "none"
    """Only writes by Python itself are seen."""


@dataclass(frozen=True, slots=True)
class WriteGuard:
    """The scratch copy a trial works in, and where else it may write. Absolute paths."""

    scratch: str
    """Its working directory: what is linked here is copied before the first write."""
    original: str
    """The user's working directory, of which that is a copy."""
    allowed: tuple[str, ...] = ()
    """Folders that may be written: the trial's own, temporary files, caches, devices."""
    stand_ins: tuple[tuple[str, str], ...] = ()
    """Folders of links to the user's caches, each with the original it stands for."""
    wall: Wall = Wall.NONE
    refuse: bool = True
    """Whether any other write ends the program; False: it is only recorded."""


class RankRole(StrEnum):
    """What a process of the program may become: a rank, observed into a folder of its own."""

    PROGRAM = "program"
    """The process that was started: it starts ranks, or joins their group itself."""
    LAUNCHED = "launched"
    """A launcher has put its rank in its environment."""
    SPAWNED = "spawned"
    """It is a rank once it joins a process group, and not observed before."""


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """What fixes may be tried and kept while the program runs."""

    allow: FixKind
    """The least exact kind."""
    start: tuple[str, ...] = ()
    """What an earlier run kept: on from the start, and checked in one contest."""
    quiet: bool = False
    """Say nothing as it goes."""


@dataclass(frozen=True, slots=True)
class ContestOptions:
    """What `tune` wants compared in a running program, which ends after it."""

    allow: FixKind
    """The least exact kind that may stay on."""
    candidates: tuple[tuple[str, ...], ...]
    """Fixes as `--fix` takes them, those of a candidate switched as one; in the order to try."""
    seconds: float
    """For all contests, and for each of them."""
    each_s: float


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options of the probe. Steps count from 1; None means the probe decides."""

    folder: str
    launched_ns: int
    """When the child was started, CLOCK_MONOTONIC."""
    steps: int | None = None
    """End the program cleanly after this many steps."""
    warmup: int | None = None
    """Steps before times count as steady."""
    window: int = 6
    """Steps recorded at kernel level; 0 for none."""
    window_at: int | None = None
    """First step of the window."""
    stacks: int = 2
    """Steps of a second window that carries Python stacks; 0 for none."""
    memory: str | None = None
    """The device whose memory is followed line by line: "cuda" or "cpu"."""
    python: bool = False
    """The parent wants to sample this process's Python code."""
    nvtx: bool = False
    overhead: float | None = None
    """Share of the program's time that observing may take: if clocking phases costs more, only some
    steps are clocked. None: all are."""
    clocks: bool = True
    """False: observe only until fixes have found the models; the program times itself."""
    fixes: tuple[str, ...] = ()
    """Fixes to apply, as the user wrote them: "pin", "workers=4"."""
    auto: AutoOptions | None = None
    """Try fixes while the program runs; None: no others than `fixes`."""
    contests: ContestOptions | None = None
    """The same for `tune`."""
    check_fixes: bool = True
    """Ask all fixes whether they would apply, once the first steps are over."""
    seed: int | None = None
    """Seeds torch, numpy and random: 0 keeps the seeds the program sets; None: untouched."""
    perturb: str | None = None
    """Round the root models' weights to this dtype once, before the first step."""
    proof: bool = False
    """Keep what a proof compares besides losses."""
    held: bool = False
    """Make a batch's random draws depend on the batch alone; for proofs only."""
    guard: WriteGuard | None = None
    """Where the program may write; None: anywhere."""
    ranks: RankRole | None = None
    """Processes that are ranks are observed into `ranks/` of the folder. None: only this one is."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        known = json.loads(text)
        guard = known.get("guard")
        if guard is not None:
            pairs = tuple((copy, own) for copy, own in guard["stand_ins"])
            typed = {"allowed": tuple(guard["allowed"]), "stand_ins": pairs}
            known["guard"] = WriteGuard(**{**guard, **typed, "wall": Wall(guard["wall"])})
        auto = known.get("auto")
        if auto is not None:
            kind, start = FixKind(auto["allow"]), tuple(auto["start"])
            known["auto"] = AutoOptions(kind, start, auto["quiet"])
        held = known.get("contests")
        if held is not None:
            candidates = tuple(map(tuple, held["candidates"]))
            allow, seconds, each_s = FixKind(held["allow"]), held["seconds"], held["each_s"]
            known["contests"] = ContestOptions(allow, candidates, seconds, each_s)
        if known.get("ranks") is not None:
            known["ranks"] = RankRole(known["ranks"])
        return cls(**{**known, "fixes": tuple(known.get("fixes", ()))})
