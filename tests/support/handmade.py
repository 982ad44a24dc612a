"""Small timelines written by hand, for tests where the right answer is known."""

from stepscope.record.timeline import (
    NOTHING,
    Collective,
    DeviceEvents,
    DeviceKind,
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


class Handmade:
    """Say what happened when; times are [start, end) in nanoseconds."""

    def __init__(self) -> None:
        self._host = []
        self._device = []
        self._threads, self._streams = ["main"], []

    def host(self, name, start, end, kind=HostKind.RUNTIME, thread="main"):
        """A host event; its number can be given as the launch of device work."""
        if thread not in self._threads:
            self._threads.append(thread)
        self._host.append((start, end, int(kind), name, self._threads.index(thread)))
        return len(self._host) - 1

    def operator(self, name, start, end, thread="main"):
        return self.host(name, start, end, HostKind.OPERATOR, thread)

    def annotation(self, name, start, end, thread="main"):
        return self.host(name, start, end, HostKind.ANNOTATION, thread)

    def python(self, name, start, end, thread="main"):
        return self.host(name, start, end, HostKind.PYTHON, thread)

    def work(self, start, end, launch=NOTHING, name="kernel", kind=None, stream="7", **more):
        """Device work; Memcpy and Memset are told by the name. launch: a number, or (start, end)
        of a cudaLaunchKernel to be made."""
        if isinstance(launch, tuple):
            launch = self.host("cudaLaunchKernel", *launch)
        place = Stream(more.pop("device", 0), stream)
        if place not in self._streams:
            self._streams.append(place)
        if kind is None:
            kinds = {"Memcpy": DeviceKind.COPY, "Memset": DeviceKind.SET}
            kind = kinds.get(name.split()[0], DeviceKind.KERNEL)
        self._device.append((start, end, int(kind), name, self._streams.index(place), launch, more))

    def timeline(self, span=None) -> Timeline:
        order = sorted(
            range(len(self._host)), key=lambda n: (self._host[n][0], -self._host[n][1], n)
        )
        at = {number: row for row, number in enumerate(order)} | {NOTHING: NOTHING}
        host = [self._host[number] for number in order]
        device = sorted(self._device, key=lambda event: event[0])
        names = sorted({event[3] for event in [*host, *device]})
        ends = [event[1] for event in [*host, *device]]
        starts = [event[0] for event in [*host, *device]]
        return Timeline(
            source="by hand",
            tool="kineto",
            origin_ns=0,
            names=names,
            threads=[Thread("1", name, name) for name in self._threads],
            streams=self._streams,
            shapes=[],
            geometries=[],
            collectives=[Collective("allreduce")],
            devices=[],
            host=make_events(
                HostEvents,
                kind=[event[2] for event in host],
                name=[names.index(event[3]) for event in host],
                start=[event[0] for event in host],
                duration=[event[1] - event[0] for event in host],
                thread=[event[4] for event in host],
                parent=_parents(host),
            ),
            device=make_events(
                DeviceEvents,
                kind=[event[2] for event in device],
                name=[names.index(event[3]) for event in device],
                start=[event[0] for event in device],
                duration=[event[1] - event[0] for event in device],
                stream=[event[4] for event in device],
                launch=[at[event[5]] for event in device],
                bytes=[event[6].get("bytes", NOTHING) for event in device],
                graph=[event[6].get("graph", NOTHING) for event in device],
                collective=[event[6].get("collective", NOTHING) for event in device],
            ),
            memory=make_events(MemoryEvents),
            syncs=make_events(SyncEvents),
            span=span or (min(starts, default=0), max(ends, default=0)),
            rank=None,
            world_size=None,
            backend=None,
            quality=Quality(),
        )


def _parents(host):
    open_on, parents = {}, []
    for row, (start, end, _, _, thread) in enumerate(host):
        stack = open_on.setdefault(thread, [])
        while stack and not (start < stack[-1][1] and end <= stack[-1][1]):
            stack.pop()
        parents.append(stack[-1][0] if stack else NOTHING)
        stack.append((row, end))
    return parents
