"""What rules read from a case: the window in ms per step, its kernels, and the whole run."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analyze.replay.changes import Change, scale_host
from stepscope.analyze.replay.known import kernel_rows
from stepscope.analyze.replay.tasks import BARE_HOST_SHARE, StretchKind, select_host
from stepscope.analyze.timeline.host import HostEntry
from stepscope.analyze.timeline.roofline.rates import OperatorRate
from stepscope.diagnose.case import Case
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Place, Predicted
from stepscope.record.kinds import IdleCause

MAX_STRETCH = 1.8
"""The most that recording without shapes was seen to stretch host time; device time is
unaffected."""
_OTHER_IDLE = (IdleCause.SYNCHRONISATION, IdleCause.COPY, IdleCause.OTHER_RANKS)
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): ")
COMPUTE_PHASES = ("forward", "backward", "optimizer")
PYTHON_STRETCHES = (StretchKind.GAP, StretchKind.PYTHON, StretchKind.ANNOTATION)
"""Host time between operators."""


def batch_size(case: Case) -> int | None:
    """Batch size of the program's first loader; None without a loader, or if the program batches
    itself."""
    return next((loader.batch_size or None for loader in case.loaders), None)


def _device_parts(case: Case) -> tuple[int, int] | None:
    """The window's wall time and the device's idle time, ns; None if no device was recorded."""
    parts = case.trace.breakdown_ns if case.trace else {}
    wall, idle = parts.get("wall"), parts.get("idle")
    return (wall, idle) if wall and idle is not None else None


def busy_ms(case: Case) -> float | None:
    """How long the device works per step; None without a device."""
    parts = _device_parts(case)
    return None if parts is None else case.per_step(parts[0] - parts[1])


def busy_share(case: Case) -> float | None:
    """The share of a step the GPU works, by the run's own clock, else by the window; None if
    neither saw it."""
    gpu = case.gpu
    if gpu is not None and gpu.busy_fraction is not None:
        return gpu.busy_fraction
    parts = _device_parts(case) if case.device == "cuda" else None
    return None if parts is None else 1 - parts[1] / parts[0]


def idle_share(case: Case, *causes: IdleCause) -> float | None:
    """The share of the recorded step the device idles for these causes; None if unknown."""
    if case.trace is None:
        return None
    wall, idle = case.trace.breakdown_ns.get("wall"), case.trace.idle_ns
    known = [ns for cause in causes if (ns := idle.get(cause)) is not None]
    return sum(known) / wall if wall and known else None


def exposed_copy_share(case: Case) -> float | None:
    """The share of the recorded step in which the device only copies; None without a window."""
    parts = case.trace.breakdown_ns if case.trace else {}
    wall = parts.get("wall")
    return (parts.get("exposed_copy") or 0) / wall if wall else None


def launch_idle_ms(case: Case) -> float:
    """How long the device waits in a bare step because the host is slow to launch.

    For a run: what its own clocks leave after the device's work and its other waits.
    """
    busy, idle_ns = busy_ms(case), case.trace.idle_ns if case.trace else {}
    recorded = case.per_step(idle_ns.get(IdleCause.HOST))
    if busy is None or recorded <= 0:
        return 0.0
    if case.show is None:
        return recorded
    elsewhere = sum(case.per_step(idle_ns.get(cause)) for cause in _OTHER_IDLE)
    left = case.step_ms - busy - case.phases.get("data_wait", 0.0) - elsewhere
    return min(recorded, max(0.0, left))


def host_and_device_close(case: Case) -> bool:
    """Whether host and device take about equally long for a step.

    In a trace alone host time is stretched: they may if the device is busy for as long as the host
    would be without recording.
    """
    busy = busy_ms(case)
    if busy is None:
        return False
    if case.show is None:
        return busy < case.step_ms * 0.95 and busy >= case.step_ms / MAX_STRETCH
    return 0.85 * case.step_ms <= busy < 0.97 * case.step_ms


def kernels_per_step(case: Case) -> float:
    """Kernels launched per step."""
    steps = case.recorded_steps
    return case.trace.launch.kernels / steps if case.trace and steps else 0.0


def operators(case: Case) -> Sequence[HostEntry]:
    """The host's operators with most self time (the window's top twenty)."""
    return case.trace.host.operators if case.trace and case.trace.host else ()


def runtime_calls(case: Case) -> Sequence[HostEntry]:
    """Calls of the CUDA runtime in the window."""
    return case.trace.host.runtime if case.trace and case.trace.host else ()


def operator_calls(case: Case) -> float:
    """Operators called per step, including nested ones."""
    threads = case.trace.host.threads if case.trace and case.trace.host else ()
    calls = sum(thread.events.get("operators", 0) for thread in threads)
    return calls / case.recorded_steps if case.recorded_steps else 0.0


def operators_ms(case: Case, pattern: str) -> float:
    """Host self time per recorded step in operators whose name matches."""
    found = re.compile(pattern).search
    return case.per_step(sum(o.self_ns for o in operators(case) if found(o.name)))


def python_ms(case: Case) -> float:
    """Time of a recorded step spent in Python between operators."""
    path = case.trace.critical_path if case.trace else None
    kinds = path.by_category if path else ()
    return case.per_step(sum(k.ns for k in kinds if k.category in ("python", "unrecorded")))


def cpu_percent(case: Case) -> float | None:
    """CPU use of the program and its workers, in percent of one core; None if not sampled."""
    return case.show.host.cpu_percent if case.show and case.show.host else None


def machine_part(case: Case, part: str) -> Mapping[str, Any]:
    """The machine's `cpu`, `memory` or first of `gpus`; empty if unknown."""
    found = case.config.machine.get(part) or {}
    return (found[0] or {}) if isinstance(found, list) else found


def is_compiled(case: Case) -> bool:
    """Whether the program compiles its model."""
    return bool(case.config.compile) or any(m.compiled for m in case.config.models)


def sites(case: Case, *phases: str) -> tuple[Place, ...]:
    """The user's lines where these phases (none given: all that compute) begin, costliest first."""
    wanted = phases or COMPUTE_PHASES
    return tuple(Place(s.file, s.line) for s in case.sites if s.what in wanted)[:3]


def python_hotspots(case: Case, most: int = 3) -> tuple[Place, ...]:
    """The user's functions with most Python self time; none if no stacks were kept."""
    stacks = case.show.timeline_stacks if case.show else None
    host = case.trace.host if case.trace else None
    lines = (stacks.host.lines if stacks else None) or (host.lines if host else None) or []
    ordered = sorted(lines, key=lambda line: -line.self_ns)
    found = (place_of_frame(line.name) for line in ordered if line.self_ns > 0)
    return tuple(place for place in found if place is not None)[:most]


def place_of_frame(frame: str | None) -> Place | None:
    """The place of a frame as recordings name it ("file.py(12): function"); None for other text."""
    found = _FRAME.match(frame or "")
    return Place(found["file"], int(found["line"])) if found else None


MATRIX = ("matmul", "convolution", "attention", "recurrent")
_USUAL_STRETCH = 1.7  # how many times longer host time usually seems in a recording without shapes


def category_ms(case: Case, *categories: str) -> float:
    """Device time per step in kernels of these categories."""
    return case.per_step(sum(k.total_ns for k in kernel_rows(case) if k.category in categories))


def category_count(case: Case, *categories: str) -> float:
    """Kernels of these categories per step."""
    counted = sum(k.count for k in kernel_rows(case) if k.category in categories)
    return counted / case.recorded_steps if case.recorded_steps else 0.0


def rows_ms(case: Case, rows: Iterable[OperatorRate]) -> float:
    """Device time per step in these operators."""
    return case.per_step(sum(row.time_ns for row in rows))


def heaviest_kernels(case: Case, category: str) -> tuple[Place, ...]:
    """The two heaviest kernels of a category, as places."""
    return tuple(Place(kernel=k.name) for k in kernel_rows(case) if k.category == category)[:2]


def operators_of(rows: Iterable[OperatorRate], most: int = 3) -> tuple[Place, ...]:
    """The operators of these rows, heaviest first, as places."""
    order = sorted(rows, key=lambda row: -row.time_ns)
    return tuple(dict.fromkeys(Place(operator=row.name) for row in order))[:most]


def fix_changes(case: Case, name: str, value: str | None = None) -> list[Change] | None:
    """What a fix changes in a replay; None if it does not apply or that is unknown."""
    return fix_named(name).predict(value, case)


def predict_gain(
    case: Case,
    changes: Iterable[Any] | None,
    reason: str,
    doubt: float,
    phase: str = "other",
    most_ms: float = math.inf,
) -> Predicted | None:
    """The step with changes; None if they gain nothing or cannot be replayed.

    They act on a phase that takes `most_ms` of the mean step: where the recorded steps had more of
    it, as steps of reinforcement learning differ, the same share of that is promised.
    In a trace alone host time is stretched, more so with shapes, so both replays shorten it by that
    factor.
    """
    if changes is None or case.model is None:
        return None
    asked = tuple(changes)
    if case.show is not None:
        found = case.predict(*asked, reason=reason, doubt=doubt)
        if found is None or (gain_ms := case.step_ms - found.step_ms) <= most_ms:
            return found
        recorded_ms = case.step_ms * case.model.host_share(select_host(phase=phase))
        gained = min(1.0, gain_ms / recorded_ms) if recorded_ms > 0 else 1.0
        return case.reach(case.step_ms - gained * most_ms, reason, doubt, case.model.error)
    shapes = case.trace is not None and case.trace.source.has.shapes
    stretched = 1 / BARE_HOST_SHARE if shapes else _USUAL_STRETCH
    shrink = scale_host(select_host(), 1 / stretched)
    before = case.model.replay(shrink).step_ms
    if before <= 0:
        return None
    after = case.model.replay(shrink, *asked).step_ms
    reason += f" (assuming recording slowed the host {stretched:.1f}×)"
    return case.reach(case.step_ms * after / before, reason, doubt, case.model.error)


def replay_gains_nothing(
    case: Case, changes: Iterable[Any] | None, predicted: Predicted | None
) -> bool:
    """Whether a replay gained nothing: then something else is the limit."""
    return changes is not None and case.model is not None and predicted is None


def gains_more(one: Predicted | None, other: Predicted | None, by: float = 0.0) -> bool:
    """Whether the first speedup exceeds the second by the share `by`."""
    if one is None:
        return False
    return other is None or one.speedup > other.speedup * (1 + by)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What one category took of a run, excluding the time for recording."""

    seconds: float
    share: float
    run_s: float
    loop_s: float
    """Steps, evaluation, checkpoints and epoch starts: what continues for the whole program."""

    @property
    def of_loop(self) -> float:
        """The share of the loop: the limit for longer runs."""
        return self.seconds / self.loop_s if self.loop_s > 0 else 0.0


_LOOP = ("warmup", "training", "inference", "batches", "evaluation", "checkpoint", "epoch_start")


def time_spent(case: Case, *categories: str) -> TimeSpent | None:
    """What these categories took; None if the whole run is not known."""
    seconds = case.show.account_s if case.show else {}
    run_s = sum(value for name, value in seconds.items() if name != "window")
    if run_s <= 0:
        return None
    taken = sum(seconds.get(name, 0.0) for name in categories)
    loop_s = sum(seconds.get(name, 0.0) for name in _LOOP)
    return TimeSpent(taken, taken / run_s, run_s, loop_s)


def site_count(case: Case, what: str) -> int:
    """How often lines of this kind were seen to run."""
    return sum(site.count for site in case.sites if site.what == what)


def category_places(case: Case, category: str) -> tuple[Place, ...]:
    """The line behind a category of the run."""
    known = case.show.account_places.get(category) if case.show else None
    return (Place(known.file, known.line),) if known and known.file else ()


def in_s(value: float) -> str:
    """Seconds for a sentence: "12 s", "3.4 s"."""
    return f"{value:,.0f} s" if value >= 9.95 else f"{value:.1f} s"


def in_count(value: float) -> str:
    """A count per step: "1", "2.5", "40"."""
    return f"{value:.0f}" if value >= 9.5 or abs(value - round(value)) < 0.05 else f"{value:.1f}"
