"""Which processes of a program are ranks, and how they come to be observed.

The program's first process hands the probe on: to processes that a launcher starts with a rank in
their environment, which are observed from the start, and to those that multiprocessing spawns or
that are forked, which wait until they join a process group. All others run as they are: loaders'
workers and helpers are no ranks. Imported before the program's first line, so without torch.
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.probe.patches import ImportWatch, Patches, drop_caller_frame
from stepscope.record.facts import RankFact
from stepscope.record.probe_options import ProbeOptions, RankRole
from stepscope.record.row_log import RANKS_FOLDER
from stepscope.store.json_lines import FactLog

WINDOW_STEP = 16
"""The first step of the window, the same in all ranks: one that records alone keeps the others
waiting."""
_VARIABLES = (  # rank and number of ranks, as launchers name them
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"  # set in every process `accelerate launch` starts
_SPAWNING = (
    "from multiprocessing.spawn import spawn_main",
    "from multiprocessing.forkserver import main",
)

Observe = Callable[[ProbeOptions, dict[str, str]], None]
"""Start observing this process; it is given the environment as it was."""
PassOn = Callable[[Mapping[str, str], str], dict[str, str]]
"""An environment with the hook that loads the probe with these options."""


class Rank(NamedTuple):
    """A rank, and how many there are."""

    number: int
    world_size: int


def launched_rank(environ: Mapping[str, str]) -> Rank | None:
    """The rank that a launcher has put there; None: none."""
    for rank, size in _VARIABLES:
        with suppress(KeyError, ValueError):
            return Rank(int(environ[rank]), int(environ[size]))
    return Rank(0, 1) if _ACCELERATE in environ else None


def claim_folder(run: Path, rank: int) -> Path:
    """A new folder for a rank; one that was restarted gets another each time. Raises OSError."""
    attempt = 0
    while True:
        name = f"{rank}.{attempt}" if attempt else str(rank)
        with suppress(FileExistsError):
            folder = run / RANKS_FOLDER / name
            folder.mkdir(parents=True)
            return folder
        attempt += 1


class RankProcess:
    """Follows one process of a program with ranks."""

    def __init__(self, options: ProbeOptions, watch: ImportWatch, observe: Observe) -> None:
        self._run = options
        self._watch = watch
        self._observe = observe
        self._role = options.ranks
        self._rank: Rank | None = None
        self._joined = False
        self._inherited: Any = None
        """In a forked process: the observer of its parent, whose patches are still there."""
        self._patches = Patches()

    def follow(self, pass_on: PassOn) -> None:
        """Called before the program's first line."""
        os.register_at_fork(after_in_child=self._forked)  # before the observer's own
        watch, environ = self._watch, dict(os.environ)
        rank = launched_rank(environ) if self._role is RankRole.LAUNCHED else None
        if rank is not None:
            own = self._claim(rank)
            watch.when_imported("torch", lambda _: self._observe(own, environ))
        elif self._role is RankRole.PROGRAM:
            watch.when_imported("torch", lambda _: self._begin(environ))
        if self._rank is None and self._role is not RankRole.SPAWNED:
            watch.when_imported("subprocess", lambda found: self._watch_popen(found, pass_on))
            watch.when_imported("multiprocessing.util", self._watch_spawning)
        watch.when_imported("torch.distributed.distributed_c10d", self._watch_joining)

    def folder(self) -> str | None:
        """Where what this process tells belongs; None while it is no rank."""
        if self._rank is not None or self._role is RankRole.PROGRAM:
            return self._run.folder
        return None

    def _begin(self, environ: dict[str, str]) -> None:
        """torch was imported: in the program's first process, or in the first fork of it that does
        so, as of a program that detaches itself."""
        if self._role is RankRole.SPAWNED and not Path(self._run.folder, "rows.npy").exists():
            self._role = RankRole.PROGRAM
        if self._role is RankRole.PROGRAM:
            self._observe(self._run, environ)

    def _claim(self, rank: Rank) -> ProbeOptions:
        """Be this rank, with a folder of its own."""
        self._rank = rank
        folder = claim_folder(Path(self._run.folder), rank.number)
        self._run = replace(self._run, folder=str(folder))
        log = FactLog(folder / "facts.jsonl")
        log.write(self._fact())
        log.close()
        return self._run

    def _fact(self) -> RankFact:
        assert self._rank is not None
        node = os.environ.get("GROUP_RANK") or os.environ.get("NODE_RANK") or "0"
        return RankFact(
            rank=self._rank.number,
            world_size=self._rank.world_size,
            pid=os.getpid(),
            node=int(node) if node.isdigit() else 0,
            program=(sys.argv or [""])[0] or None,
            joined=self._joined,
        )

    def _watch_popen(self, subprocess: Any, pass_on: PassOn) -> None:
        """Have processes that are started with a rank of their own load the probe."""
        original = subprocess.Popen.__init__
        options = replace(self._run, ranks=RankRole.LAUNCHED).to_json()

        @functools.wraps(original)
        def start(popen: Any, *args: Any, **kwargs: Any) -> None:
            environ: Mapping[str, str] = kwargs.get("env") or {}
            if self._role in (RankRole.PROGRAM, RankRole.LAUNCHED) and _is_for_rank(environ):
                kwargs["env"] = pass_on(environ, options)
            try:
                original(popen, *args, **kwargs)
            except BaseException as error:
                drop_caller_frame(error)
                raise

        self._patches.set(subprocess.Popen, "__init__", start)

    def _watch_spawning(self, util: Any) -> None:
        """Have processes that multiprocessing spawns load the probe, where it can be found."""
        original = util.spawnv_passfds
        options = replace(self._run, ranks=RankRole.SPAWNED).to_json()
        load = (
            "try:\n from stepscope.launch.bootstrap import start_probe\n"
            f"except ImportError:\n pass\nelse:\n start_probe({options!r})\n"
        )

        @functools.wraps(original)
        def spawn(path: Any, args: Any, passfds: Any) -> Any:
            if self._role is RankRole.PROGRAM:
                args = [
                    f"exec({load!r}); {word}"
                    if isinstance(word, str) and word.startswith(_SPAWNING)
                    else word
                    for word in args
                ]
            return original(path, args, passfds)

        self._patches.set(util, "spawnv_passfds", spawn)

    def _watch_joining(self, c10d: Any) -> None:
        original = c10d.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            self._guarded(lambda: self._about_to_join(kwargs))
            try:
                made = original(*args, **kwargs)
            except BaseException as error:
                drop_caller_frame(error)
                raise
            self._guarded(self._has_joined)
            return made

        for module in (c10d, sys.modules.get("torch.distributed")):
            if module is not None and vars(module).get("init_process_group") is original:
                self._patches.set(module, "init_process_group", init_process_group)

    def _guarded(self, action: Callable[[], None]) -> None:
        """A fault of ours never reaches the program."""
        try:
            action()
        except Exception as problem:
            self._role = None
            print(f"stepscope: rank not observed: {problem!r}", file=sys.stderr)

    def _about_to_join(self, given: Mapping[str, Any]) -> None:
        """Where the rank is known already, a process that never gets through is seen."""
        rank, size = given.get("rank", -1), given.get("world_size", -1)
        known = Rank(rank, size) if rank >= 0 and size > 0 else launched_rank(os.environ)
        if self._waits and known is not None:
            self._start(known)

    def _has_joined(self) -> None:
        from torch import distributed

        from stepscope.probe import observer

        if self._role is None:
            return
        rank = Rank(distributed.get_rank(), distributed.get_world_size())
        if self._waits:
            self._start(rank)
        current = observer.current
        if current is None or self._joined or (self._rank is None and rank.world_size < 2):
            return
        self._rank, self._joined = rank, True
        current.core.facts.write(self._fact())
        if rank.world_size > 1:
            from stepscope.probe.ranks.meetings import watch_meetings

            current.core.window.agree_on(WINDOW_STEP)
            watch_meetings(current.core)

    @property
    def _waits(self) -> bool:
        """Whether it is observed only once it is a rank."""
        return self._rank is None and self._role in (RankRole.SPAWNED, RankRole.LAUNCHED)

    def _start(self, rank: Rank) -> None:
        """Observe this process from now on."""
        if self._inherited is not None:
            self._inherited.leave_to_fork()
            self._inherited = None
        self._observe(self._claim(rank), dict(os.environ))
        if "multiprocessing.util" in sys.modules:
            _end_with_worker()

    def _forked(self) -> None:
        """In a forked child: a rank, perhaps, of one that is none itself."""
        found = sys.modules.get("stepscope.probe.observer")
        self._inherited = getattr(found, "current", None) or self._inherited
        ranked = self._rank is not None or self._role is None
        self._role = None if ranked else RankRole.SPAWNED


def _is_for_rank(environ: Mapping[str, str]) -> bool:
    """Whether an environment is that of a rank, and not merely this process's own."""
    ours = os.environ
    if "WORLD_SIZE" in environ and any(
        name in environ and environ[name] != ours.get(name) for name in ("RANK", "LOCAL_RANK")
    ):
        return True
    return _ACCELERATE in environ and _ACCELERATE not in ours


def _end_with_worker() -> None:
    """A process of multiprocessing's ends without atexit; an error is passing by just then."""
    from multiprocessing import parent_process, util

    def end() -> None:
        from stepscope.probe import observer

        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # torch's spawn exits so after a failure
            error = error.__context__ if error.code else None
        if observer.current is not None:
            observer.current.end(error)

    if parent_process() is not None:
        util.Finalize(None, end, exitpriority=0)
