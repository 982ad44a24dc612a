"""What rules read of a case: the recorded window in ms of a step, its kernels, and the run as a
whole.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from stepscope.analyze.replay.changes import scale_host
from stepscope.analyze.replay.known import RooflineRow
from stepscope.analyze.replay.tasks import BARE_HOST_SHARE, select_host
from stepscope.analyze.timeline.roofline.ceilings import datasheet_ceilings
from stepscope.diagnose.case import Case
from stepscope.record.finding import Place, Predicted
from stepscope.record.timeline import DeviceInfo

MAX_STRETCH = 1.8
"""How much recording without shapes stretches host time at most, as seen; it leaves device time
alone."""
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): ")
_COMPUTE = ("forward", "backward", "optimizer")


def recorded_steps(case: Case) -> int:
    """Steps in the window; 0 without one."""
    return int(((case.trace or {}).get("steps") or {}).get("count") or 0)


def per_step(case: Case, ns: float | None) -> float:
    """Nanoseconds of the whole window as ms of a step."""
    count = recorded_steps(case)
    return (ns or 0.0) / count / 1e6 if count else 0.0


def recorded_step_ms(case: Case) -> float:
    """The mean step in the window, slowed by recording; 0 without one."""
    return float(((case.trace or {}).get("steps") or {}).get("mean_ms") or 0.0)


def recorded_share(case: Case, ms: float) -> float:
    """As a share of the recorded step, at most 1; 0 without a window."""
    recorded = recorded_step_ms(case)
    return min(1.0, ms / recorded) if recorded else 0.0


def batch_size(case: Case) -> int | None:
    """Of the program's first loader; None where it has none or batches itself."""
    loaders = (case.show or {}).get("loaders") or []
    size = loaders[0].get("batch_size") if loaders else None
    return int(size) if size else None


def step_share(case: Case, ms: float) -> float:
    """As a share of the step, at most 1."""
    return min(1.0, max(0.0, ms / case.step_ms)) if case.step_ms > 0 else 0.0


def busy_ms(case: Case) -> float | None:
    """How long the device works for a step; None without one."""
    parts = (case.trace or {}).get("breakdown_ns") or {}
    if parts.get("idle") is None or not recorded_steps(case):
        return None
    return per_step(case, parts["wall"] - parts["idle"])


def idle_ms(case: Case, cause: str) -> float:
    """The device's idle time of one cause, as recorded."""
    return per_step(case, ((case.trace or {}).get("idle_ns") or {}).get(cause))


def launch_idle_ms(case: Case) -> float:
    """How long the device waits in a bare step because the host is slow to launch.

    Of a run: what its own clocks leave after the device's work and what else it waits for.
    """
    busy, recorded = busy_ms(case), idle_ms(case, "host")
    if busy is None or recorded <= 0:
        return 0.0
    if case.show is None:
        return recorded
    elsewhere = sum(idle_ms(case, cause) for cause in ("synchronisation", "copy", "other_ranks"))
    left = case.step_ms - busy - case.phases.get("data_wait", 0.0) - elsewhere
    return min(recorded, max(0.0, left))


def host_and_device_close(case: Case) -> bool:
    """Whether host and device take about equally long for a step.

    A trace alone has stretched host time: they may be, where the device is busy for as long as the
    host would be without recording.
    """
    busy = busy_ms(case)
    if busy is None:
        return False
    if case.show is None:
        return busy < case.step_ms * 0.95 and busy >= case.step_ms / MAX_STRETCH
    return 0.85 * case.step_ms <= busy < 0.97 * case.step_ms


def kernels_per_step(case: Case) -> float:
    """Kernels launched for a step."""
    launch = (case.trace or {}).get("launch") or {}
    return launch.get("kernels", 0) / recorded_steps(case) if recorded_steps(case) else 0.0


def operators(case: Case) -> list[Mapping[str, Any]]:
    """The host's operators with most time of their own (the window's twenty)."""
    return list(((case.trace or {}).get("host") or {}).get("operators") or [])


def operator_calls(case: Case) -> float:
    """Operators called in a step, nested ones too."""
    threads = ((case.trace or {}).get("host") or {}).get("threads") or []
    calls = sum((thread.get("events") or {}).get("operators", 0) for thread in threads)
    return calls / recorded_steps(case) if recorded_steps(case) else 0.0


def operators_ms(case: Case, pattern: str) -> float:
    """Host time of a recorded step in operators whose name matches, their own."""
    found = re.compile(pattern).search
    return per_step(case, sum(o["self_ns"] for o in operators(case) if found(o["name"])))


def python_ms(case: Case) -> float:
    """What of a recorded step passes in Python, between operators."""
    path = (case.trace or {}).get("critical_path") or {}
    kinds = path.get("by_category") or []
    between = sum(k["ns"] for k in kinds if k["category"] in ("python", "unrecorded"))
    return per_step(case, between)


def switches(case: Case) -> Mapping[str, Any]:
    """torch's global switches; empty for a trace alone."""
    return config(case).get("switches") or {}


def config(case: Case) -> Mapping[str, Any]:
    """What the program is set to; empty for a trace alone."""
    return (case.show or {}).get("config") or {}


def is_compiled(case: Case) -> bool:
    """Whether the program compiles its model."""
    models = config(case).get("models") or []
    return bool(config(case).get("compile")) or any(m.get("compiled") for m in models)


def uses_cuda_graphs(case: Case) -> bool:
    """Whether most kernels already come from CUDA graphs."""
    launch = (case.trace or {}).get("launch") or {}
    return bool(2 * launch.get("graph_kernels", 0) > launch.get("kernels", 0))


def sites(case: Case, *phases: str) -> tuple[Place, ...]:
    """The user's lines where these phases (none: all that compute) begin, costliest first."""
    wanted = phases or _COMPUTE
    known = (case.show or {}).get("sites") or []
    return tuple(Place(s["file"], s["line"]) for s in known if s["what"] in wanted)[:3]


def python_hotspots(case: Case, most: int = 3) -> tuple[Place, ...]:
    """The user's functions with most Python time of their own; none where no stacks were kept."""
    stacks = ((case.show or {}).get("timeline_stacks") or {}).get("host") or {}
    host = (case.trace or {}).get("host") or {}
    lines = stacks.get("lines") or host.get("lines") or []
    ordered = sorted(lines, key=lambda line: -line["self_ns"])
    found = (place_of_frame(line["name"]) for line in ordered if line["self_ns"] > 0)
    return tuple(place for place in found if place is not None)[:most]


def place_of_frame(frame: str | None) -> Place | None:
    """A frame as recordings name it ("file.py(12): function"); None for other words."""
    found = _FRAME.match(frame or "")
    return Place(found["file"], int(found["line"])) if found else None


Row = Mapping[str, Any]
MATRIX = ("matmul", "convolution", "attention", "recurrent")
_USUAL_STRETCH = 1.7  # times longer does host time usually seem in a recording without shapes


def recorded_kernels(case: Case) -> list[Row]:
    """Kernels, copies and memsets by name, heaviest first."""
    return list((case.trace or {}).get("kernels") or [])


def category_ms(case: Case, *categories: str) -> float:
    """Device time of a step in kernels of these categories."""
    return per_step(
        case, sum(k["total_ns"] for k in recorded_kernels(case) if k["category"] in categories)
    )


def category_count(case: Case, *categories: str) -> float:
    """Kernels of these categories in a step."""
    counted = sum(k["count"] for k in recorded_kernels(case) if k["category"] in categories)
    return counted / recorded_steps(case) if recorded_steps(case) else 0.0


def roofline_rows(case: Case) -> list[RooflineRow]:
    """Operators by shape, held against the ceilings; empty where no shapes were recorded."""
    return list(((case.trace or {}).get("roofline") or {}).get("shapes") or [])


def flops_rates(case: Case) -> Mapping[str, float]:
    """FLOP/s by dtype that the device can do; empty where not known."""
    ceilings = ((case.trace or {}).get("roofline") or {}).get("ceilings") or {}
    name = ((case.trace or {}).get("source") or {}).get("device")
    said = datasheet_ceilings(DeviceInfo(0, name)) if name else None
    return ceilings.get("flops_per_s") or (said.flops_per_s if said else {})


def rows_ms(case: Case, rows: Iterable[Row]) -> float:
    """Device time of a step in some operators."""
    return per_step(case, sum(row["time_ns"] for row in rows))


def heaviest_kernels(case: Case, select: Callable[[Row], bool], most: int = 3) -> tuple[Place, ...]:
    """The heaviest kernels that are selected, as places."""
    return tuple(Place(kernel=k["name"]) for k in recorded_kernels(case) if select(k))[:most]


def operators_of(rows: Iterable[Row], most: int = 3) -> tuple[Place, ...]:
    """The operators of some rows, heaviest first, as places."""
    order = sorted(rows, key=lambda row: -row["time_ns"])
    return tuple(dict.fromkeys(Place(operator=row["name"]) for row in order))[:most]


def predict_gain(
    case: Case, changes: Iterable[Any] | None, words: str, doubt: float
) -> Predicted | None:
    """The step with changes; None where they gain nothing or nothing is known.

    A trace alone has stretched host time: there both replays take it as so much too long.
    """
    if changes is None or case.model is None:
        return None
    asked = tuple(changes)
    if case.show is not None:
        return case.predict(*asked, words=words, doubt=doubt)
    stretched = _stretched(case)
    shrink = scale_host(select_host(), 1 / stretched)
    before = case.model.replay(shrink).step_ms
    if before <= 0:
        return None
    after = case.model.replay(shrink, *asked).step_ms
    said = f"{words} (of the recorded step, host time taken as stretched {stretched:.1f} times)"
    return case.reach(case.step_ms * after / before, said, doubt, case.model.error)


def _stretched(case: Case) -> float:
    """How many times longer host time seems in a trace: more where shapes were recorded too."""
    has = ((case.trace or {}).get("source") or {}).get("has") or {}
    return 1 / BARE_HOST_SHARE if has.get("shapes") else _USUAL_STRETCH


def replay_gains_nothing(
    case: Case, changes: Iterable[Any] | None, predicted: Predicted | None
) -> bool:
    """Whether a replay was made and gained nothing: then something else is the limit."""
    return changes is not None and case.model is not None and predicted is None


def gains_more(one: Predicted | None, other: Predicted | None, by: float = 0.0) -> bool:
    """Whether the first gains more than the second, by so much of the speedup."""
    if one is None:
        return False
    return other is None or one.speedup > other.speedup * (1 + by)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What one category took of a run; recording, which is not the program's own, left out."""

    seconds: float
    share: float
    run_s: float
    loop_s: float
    """Steps, evaluation, checkpoints and epoch starts: what goes on as long as the program does."""

    @property
    def of_loop(self) -> float:
        """The share of the loop: what it comes to in a longer run."""
        return self.seconds / self.loop_s if self.loop_s > 0 else 0.0


_LOOP = ("warmup", "training", "inference", "batches", "evaluation", "checkpoint", "epoch_start")


def seconds_by_category(case: Case) -> Mapping[str, float]:
    """Seconds by category; empty for a trace alone."""
    return (case.show or {}).get("account_s") or {}


def time_spent(case: Case, *categories: str) -> TimeSpent | None:
    """What these took; None where nothing is known of the whole run."""
    seconds = seconds_by_category(case)
    run_s = sum(value for name, value in seconds.items() if name != "window")
    if run_s <= 0:
        return None
    taken = sum(seconds.get(name, 0.0) for name in categories)
    loop_s = sum(seconds.get(name, 0.0) for name in _LOOP)
    return TimeSpent(taken, taken / run_s, run_s, loop_s)


def site_count(case: Case, what: str) -> int:
    """How often lines that do this were seen to."""
    sites = (case.show or {}).get("sites") or []
    return sum(int(site["count"]) for site in sites if site["what"] == what)


def category_places(case: Case, category: str) -> tuple[Place, ...]:
    """The line behind a category of the run."""
    known = ((case.show or {}).get("account_places") or {}).get(category) or {}
    return (Place(file=known["file"], line=known["line"]),) if known.get("file") else ()


def run_steps(case: Case) -> int:
    """All steps of the run."""
    return int(((case.show or {}).get("steps") or {}).get("count") or 0)


def in_s(value: float) -> str:
    """As a sentence has it: "12 s", "3.4 s"."""
    return f"{value:,.0f} s" if value >= 9.95 else f"{value:.1f} s"


def in_count(value: float) -> str:
    """How often a step: "1", "2.5", "40"."""
    return f"{value:.0f}" if value >= 9.5 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def place_of_line(document: Mapping[str, Any]) -> Place:
    """The place of anything that has `file` and `line`."""
    return Place(file=document.get("file"), line=document.get("line"))


def at_place(place: Place) -> str:
    """A place in a sentence: ", train.py:20"; nothing where it is not known."""
    return f", {PurePath(place.file).name}:{place.line}" if place.file else ""


def with_words(predicted: Predicted | None, words: str) -> Predicted | None:
    """A prediction made without words, with them."""
    return predicted and replace(predicted, how=predicted.how + words)
