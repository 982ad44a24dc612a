"""Small windows by hand, in microseconds: what the host does, launches and waits for, in order."""

import numpy as np

from stepscope.analyze.replay.tasks import (
    DeviceTasks,
    HostTasks,
    LoaderQueue,
    StretchKind,
    Tasks,
    WaitKind,
    WaitTasks,
)
from stepscope.analyze.timeline.attribution import CATEGORIES
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import DeviceKind


def host(us, phase="forward", did=StretchKind.OPERATOR, name="aten::work", call=-1):
    return ("host", us * 1e3, STEP_PHASES.index(phase), did, name, call)


def launch(us, stream=0, category="matmul", kind=DeviceKind.KERNEL, name="kernel", after=-1,
           overlaps_us=0.0, graph=False, call=-1):  # fmt: skip
    return ("work", us * 1e3, stream, CATEGORIES.index(category), kind, name, after,
            overlaps_us * 1e3, graph, call)  # fmt: skip


def wait(what=WaitKind.SYNCHRONIZE, work=-1, stream=-1):
    return ("wait", what, work, stream)


FETCH = ("fetch",)


def make(*items, steps=1, queue=1024, loader: LoaderQueue | None = None) -> Tasks:
    """One step, repeated `steps` times. Launches and waits stand at the end of the stretch before
    them; `after` and `work` count the launches of one step."""
    names: list[str] = []
    stretches, works, waits, fetches = [], [], [], []
    per_step = sum(item[0] == "work" for item in items)
    for step in range(steps):
        for item in items:
            what, *rest = item
            at = len(stretches) - 1
            if what == "host":
                stretches.append((*rest, step))
            elif what == "work":
                works.append((at, *rest, step))
            elif what == "wait":
                kind, work, stream = rest
                waits.append((at, kind, work + step * per_step if work >= 0 else -1, stream, step))
            else:
                fetches.append(at)

    def number(name):
        if name not in names:
            names.append(name)
        return names.index(name)

    def column(rows, place, dtype):
        return np.array([row[place] for row in rows], dtype)

    chain = HostTasks(
        duration=column(stretches, 0, float),
        did=column(stretches, 2, np.uint8),
        phase=column(stretches, 1, np.uint8),
        name=np.array([number(row[3]) for row in stretches], np.int32),
        operator=np.array([number(row[3]) for row in stretches], np.int32),
        call=column(stretches, 4, np.int32),
        step=column(stretches, 5, np.int32),
    )
    size = len(works)
    after = np.array([r[6] + r[10] * per_step if r[6] >= 0 else -1 for r in works], np.int64)
    at = column(works, 0, np.int32)
    work = DeviceTasks(
        duration=column(works, 1, float),
        at=at,
        stream=column(works, 2, np.int64),
        overlaps=column(works, 7, float),
        after=after,
        kind=column(works, 4, np.uint8),
        name=np.array([number(row[5]) for row in works], np.int32),
        category=column(works, 3, np.uint8),
        phase=chain.phase[at] if size else np.zeros(0, np.uint8),
        operator=np.full(size, -1, np.int32),
        call=column(works, 9, np.int32),
        bytes=np.full(size, -1, np.int64),
        event=np.arange(size),
        step=column(works, 10, np.int32),
        graph=column(works, 8, bool),
        gone=np.zeros(size, bool),
    )
    places = column(waits, 0, np.int32)
    stops = WaitTasks(
        at=places,
        what=column(waits, 1, np.uint8),
        work=column(waits, 2, np.int64),
        stream=column(waits, 3, np.int64),
        phase=chain.phase[places] if len(waits) else np.zeros(0, np.uint8),
        place=np.full(len(waits), -1, np.int32),
        operator=np.full(len(waits), -1, np.int32),
        step=column(waits, 4, np.int32),
        gone=np.zeros(len(waits), bool),
    )
    return Tasks(names, chain, work, stops, np.array(fetches, np.int64), steps, loader, queue)
