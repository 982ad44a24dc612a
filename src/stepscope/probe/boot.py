"""Starts the probe in a process: waits for torch, installs the observer, and ends it at exit.
Imported before the program's first line, so it imports almost nothing. Forked children are made
inert.
"""

import atexit
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from stepscope.probe.patches import ImportWatch
from stepscope.record.probe_options import ProbeOptions, WriteGuard

if TYPE_CHECKING:
    from stepscope.probe.ranks.processes import PassOn

_PR_SET_PTRACER = 0x59616D61


def _allow_ptrace_by_parent() -> None:
    """Permit the parent and its other children (py-spy) to read this process's memory. Matters
    under Yama's `ptrace_scope` 1, the default of Ubuntu; elsewhere it changes nothing."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    except (OSError, AttributeError):
        return


def watch_forks(forked: Callable[[], None], about_to: Callable[[], None] | None = None) -> None:
    """Call `about_to` before every fork and `forked` in the child, and leave what was garbage in
    the parent alone there. Collecting it would free CUDA memory, which ends a process that CUDA was
    not started in. Other libraries' handlers may run before ours, so collections are held from
    before the fork."""
    held: list[bool] = []  # one for each thread that forks just now

    def hold() -> None:
        if about_to is not None:
            about_to()
        held.append(gc.isenabled())
        gc.disable()

    def resume() -> None:
        if held.pop():
            gc.enable()

    def resume_in_child() -> None:
        gc.freeze()
        forked()
        if any(held):
            gc.enable()
        held.clear()

    os.register_at_fork(before=hold, after_in_parent=resume, after_in_child=resume_in_child)


_BOOT = str(Path(__file__).parent.parent / "launch" / "boot")


def boot(
    text: str, prepare: Callable[[Any], None] | None = None, pass_on: "PassOn | None" = None
) -> None:
    """Called before the program starts. Nothing here may raise. `prepare` is called with the
    observer before it is installed: there fixes are added. `pass_on` makes the environment in which
    a process started by this one loads the probe."""
    try:
        options = ProbeOptions.from_json(text)
        if options.python and sys.platform == "linux":
            _allow_ptrace_by_parent()
        watch = ImportWatch(monotonic_ns())
        environ = dict(os.environ)
        if options.guard is not None:
            _guard(options.guard, options.folder, watch)
        if options.seed is not None:
            from stepscope.probe.proof.seeding import Seeding

            Seeding(options.seed).install(watch)
        if options.ranks is None or pass_on is None:
            watch.when_imported("torch", lambda _: _begin(options, watch, prepare, environ))
            watch.before_import = lambda name: _note_torch(name, options.folder)
        else:
            _follow_ranks(options, watch, prepare, pass_on)
        watch.install()
    except Exception as problem:
        _give_up(problem)


def _follow_ranks(
    options: ProbeOptions,
    watch: ImportWatch,
    prepare: Callable[[Any], None] | None,
    pass_on: "PassOn",
) -> None:
    """Observe this process if it is a rank, and have those it starts do the same."""
    from stepscope.probe.ranks.processes import RankProcess

    def observe(own: ProbeOptions, environ: dict[str, str]) -> None:
        _begin(own, watch, prepare, environ)

    process = RankProcess(options, watch, observe)
    process.follow(pass_on)
    watch.before_import = lambda name: _note_torch(name, process.folder())


def _guard(guard: WriteGuard, folder: str, watch: ImportWatch) -> None:
    """Guard the user's files; without a guard the program does not run."""
    try:
        from stepscope.probe.guard.audit import install_guard

        install_guard(guard, folder, watch)
    except Exception as problem:
        text = f"could not set up the write guard; not running the program: {problem!r}"
        print(f"stepscope: {text}", file=sys.stderr, flush=True)
        os._exit(1)


def _note_torch(name: str, folder: str | None) -> None:
    """Have the live line say what takes seconds. Others wait for modules too: of torch only."""
    if name != "torch" or folder is None:
        return
    from stepscope.record.facts import TorchBegunFact
    from stepscope.store.json_lines import FactLog

    with suppress(OSError):  # the run folder cannot be written: `_begin` reports it
        log = FactLog(Path(folder) / "facts.jsonl")
        log.write(TorchBegunFact())
        log.close()


def _begin(
    options: ProbeOptions,
    watch: ImportWatch,
    prepare: Callable[[Any], None] | None,
    environ: dict[str, str],
) -> None:
    """torch has just been imported; `environ` is what the environment was at first."""
    try:
        if str(getattr(sys.modules.get("sitecustomize"), "__file__", "")).startswith(_BOOT):
            del sys.modules["sitecustomize"]
        from stepscope.probe.observer import Observer

        observer = Observer(options)
        changed = sorted(dict(environ.items() ^ os.environ.items()))
        observer.core.environment_changed = changed
        if prepare is not None:
            prepare(observer)
        observer.install(watch)
        if changed:
            from stepscope.record.facts import EnvironFact

            observer.core.facts.write(EnvironFact(changed_before_torch=changed))
        watch_forks(observer.forked, observer.about_to_fork)
        atexit.register(_keep_interrupted)  # runs last
        atexit.register(_end, observer)
    except Exception as problem:
        from stepscope.record.facts import ProblemFact
        from stepscope.record.problems import ProblemKind
        from stepscope.store.json_lines import FactLog

        _give_up(problem)
        try:
            facts = FactLog(Path(options.folder) / "facts.jsonl")
            facts.write(ProblemFact(kind=ProblemKind.NOT_OBSERVED, detail=repr(problem)))
        except OSError:  # the run folder cannot be written
            pass


def _keep_interrupted() -> None:
    """Have Python still end by SIGINT after a KeyboardInterrupt nobody caught. It remembers to in a
    flag that any `exec` of a string on the way out clears, as of a dataclass in a module imported
    late; one that ends in KeyboardInterrupt sets it again."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        try:
            exec("raise KeyboardInterrupt")
        except KeyboardInterrupt:
            pass


def _end(observer: Any) -> None:
    try:
        observer.end()
    except Exception as problem:
        _give_up(problem)


def _give_up(problem: Exception) -> None:
    print(f"stepscope: probe failed, running without it: {problem!r}", file=sys.stderr)
