"""A made-up window of any size, shaped like training: steps, operators, launches, kernels."""

import numpy as np
from numpy.typing import NDArray

from stepscope.record.timeline import (
    DeviceEvents,
    DeviceKind,
    Geometry,
    HostEvents,
    HostKind,
    MemoryEvents,
    Quality,
    Stream,
    SyncEvents,
    Thread,
    Timeline,
    make_events,
)

_OPERATORS = 40
_HOST_PER_OPERATOR = 4  # aten::…, what it calls, what that calls, the launch
_PER_STEP = 1_000  # operators


def made_up(size: int, seed: int = 0) -> Timeline:
    """About `size` events of the host and one device; two threads and two streams share them."""
    rng = np.random.default_rng(seed)
    count = size // (_HOST_PER_OPERATOR + 1)
    steps = max(count // _PER_STEP, 1)
    wait = rng.integers(500, 4_000, count)
    length = rng.integers(8_000, 40_000, count)
    start = np.cumsum(wait + length) - length
    which = rng.integers(0, _OPERATORS, count)
    thread = (np.arange(count) // (_PER_STEP // 2)) % 2
    names = [f"aten::operator_{n}" for n in range(_OPERATORS)]
    names += [f"aten::inner_{n}" for n in range(_OPERATORS)]
    names += [f"aten::innermost_{n}" for n in range(_OPERATORS)]
    names += [f"void kernel_{n}<float, {n}>(float*, int)" for n in range(_OPERATORS)]
    names += ["cudaLaunchKernel", *(f"ProfilerStep#{n}" for n in range(steps))]
    host = _host(start, length, which, thread, steps, len(names) - steps - 1)
    launches = np.flatnonzero(host.kind == HostKind.RUNTIME)
    device = _device(rng, host, launches, which)
    time = host.start[launches]
    end = int(max((host.start + host.duration).max(), (device.start + device.duration).max()))
    return Timeline(
        source="made-up.pt.trace.json.gz",
        tool="kineto",
        origin_ns=0,
        names=names,
        threads=[Thread("1", "1", "python"), Thread("1", "2", "pt_autograd_0")],
        streams=[Stream(0, "7"), Stream(0, "20")],
        shapes=[],
        geometries=[Geometry((n, 1, 1), (256, 1, 1), 32, 0) for n in range(1, 9)],
        collectives=[],
        devices=[],
        host=host,
        device=device,
        memory=make_events(
            MemoryEvents,
            time=time,
            device=np.zeros(count),
            bytes=np.full(count, 1024),
            allocated=(1 << 30) + (np.arange(count) % _PER_STEP) * 1_000_000,
        ),
        syncs=make_events(SyncEvents),
        span=(0, end),
        rank=None,
        world_size=None,
        backend=None,
        quality=Quality(),
    )


def _host(
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    which: NDArray[np.int64],
    thread: NDArray[np.int64],
    steps: int,
    launch: int,
) -> HostEvents:
    """Marks of steps, and of each operator four events, one in the other."""
    count = len(start)
    kinds = [HostKind.OPERATOR] * 3 + [HostKind.RUNTIME]
    edges = start[np.arange(steps) * (count // steps)] - 200
    until = np.append(edges[1:], start[-1] + length[-1] + 200)
    inner = np.arange(_HOST_PER_OPERATOR)
    begin = (start[:, None] + inner * 1_000).ravel()
    last = (start[:, None] + length[:, None] - inner * 1_000).ravel()
    name = np.stack([which, which + _OPERATORS, which + 2 * _OPERATORS, np.full(count, launch)], 1)
    parent = (np.arange(count)[:, None] * _HOST_PER_OPERATOR + inner - 1).ravel()
    parent[::_HOST_PER_OPERATOR] = -1
    order = np.argsort(np.concatenate((edges, begin)), kind="stable")
    place = np.empty(len(order) + 1, np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    parents = np.concatenate((np.full(steps, -1), np.where(parent < 0, -1, parent + steps)))
    return make_events(
        HostEvents,
        kind=np.concatenate((np.full(steps, HostKind.ANNOTATION), np.tile(kinds, count)))[order],
        name=np.concatenate((launch + 1 + np.arange(steps), name.ravel()))[order],
        start=np.concatenate((edges, begin))[order],
        duration=np.concatenate((until - edges, last - begin))[order],
        thread=np.concatenate((np.zeros(steps), np.repeat(thread, _HOST_PER_OPERATOR)))[order],
        parent=place[parents][order],
    )


def _device(
    rng: np.random.Generator,
    host: HostEvents,
    launches: NDArray[np.int64],
    which: NDArray[np.int64],
) -> DeviceEvents:
    """A kernel for each launch, soon after it and done before the next; every tenth is a copy."""
    count = len(launches)
    begin = host.start[launches] + rng.integers(3_000, 6_000, count)
    room = np.append(np.diff(begin), 40_000)
    duration = (room * rng.uniform(0.1, 0.95, count)).astype(np.int64)
    copy = np.arange(count) % 10 == 9
    return make_events(
        DeviceEvents,
        kind=np.where(copy, DeviceKind.COPY, DeviceKind.KERNEL),
        name=which + 3 * _OPERATORS,
        start=begin,
        duration=duration,
        stream=np.where(copy, 1, 0),
        bytes=np.where(copy, 4096, -1),
        geometry=which % 8,
        launch=launches,
    )
