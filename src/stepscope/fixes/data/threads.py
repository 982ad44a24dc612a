"""Set how many threads torch uses on the CPU."""

import threading
from importlib import import_module
from typing import Any

from stepscope.analyze.replay import known as replay
from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.devices import allowed_cores
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.record.fix import Applied, NotApplied, Reason, Target

_PARALLEL_SHARE = 0.9  # of a large operator's time: shared out among threads
_LARGE_NS = 100_000.0  # an operator must take this long on average to gain from more threads
THREADS = Target("threads", "{before} → {after} threads")
THREADS_SETTING = Target("threads_setting", "{after} threads where {overrides} asks for {before}")
THREADS_ALREADY = Reason("threads_already", "torch already uses {value} threads")


class Threads(Fix):
    """Without a number: the cores this process may use, minus one per loader worker. Only in the
    program's main thread: workers and the pinning thread keep one, as torch intends."""

    name = "threads"
    group = "data"
    title = "have torch use N threads on the CPU"
    kind = FixKind.NUMERIC
    effort = "one line"
    edited_at_top = True
    values = ("N",)
    suggested = ("1", "2", "4")
    missing = "torch uses as many threads as there are cores, and no loader has workers"
    only_if_found = True

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        return [proposed]  # None: as many as there are cores

    def most(self, program: ObservedProgram) -> int:
        return program.usable_cores

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Large operators split over this many threads; None if the operators are unknown."""
        known_switches = replay.switches(known)
        now = known_switches.threads if known_switches else None
        large = [o for o in replay.host_operator_rows(known) if o.self_ns >= _LARGE_NS * o.count]
        if known.device != "cpu" or not now or not value or not large:
            return None
        pattern = replay.exact_names_pattern(one.name for one in large)
        factor = 1 - _PARALLEL_SHARE + _PARALLEL_SHARE * now / int(value)
        return [changes.scale_host(tasks.select_host(operator=pattern), factor)]

    def install(self, value: Any, context: FixContext) -> None:
        cores = allowed_cores()
        chosen = value or cores

        def choose(count: int) -> None:
            nonlocal chosen
            chosen = count
            before = torch.get_num_threads()
            if before != count:
                torch.set_num_threads(count)
                context.applied(Applied(THREADS, before=before, after=count))

        def asked(call: Any, count: int) -> None:
            """Overrides the program's own number."""
            if threading.current_thread() is not threading.main_thread():
                call(count)
                return
            call(chosen)
            if count != chosen:
                context.applied(
                    Applied(THREADS_SETTING, before=count, after=chosen, overrides=context.place())
                )

        def iterated(make: Any, loader: Any) -> Any:
            if not value and loader.num_workers:
                choose(min(chosen, max(1, cores - loader.num_workers)))
            return make(loader)

        context.seams.loader_iterated(iterated)
        context.seams.around(import_module("torch"), "set_num_threads", asked)
        if value and torch.get_num_threads() == value:
            context.not_applied(NotApplied(THREADS_ALREADY, value=value))
        choose(chosen)

    def edit(self, value: Any, line: str) -> SourceEdit:
        count = value or allowed_cores()
        return SourceEdit(
            f"call torch.set_num_threads({count}) at the start of the program",
            before=(f"torch.set_num_threads({count})",),
        )


FIX = Threads()
