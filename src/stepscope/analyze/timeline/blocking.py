"""Calls in which a host thread stands still until the device has caught up."""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.copynames import read_copy_name
from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import Column, DeviceKind, HostKind, Timeline

_WAITS = re.compile(
    r"^((cuda|hip)(Device|Stream|Event)|cu(Ctx|Stream|Event)|hipCtx)Synchronize"
    r"|^(cuda|hip|cu)Memcpy(?!.{0,60}Async)"
    r"|^(cuda|hip)Free(_v\d+)?$|^cuMemFree(_v\d+)?$"
)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Blocking calls as indices into the host events, in order of their starts."""

    events: Column
    uploads: Column  # bool: the call waits for a copy from host to device to be done


def blocking_calls(timeline: Timeline) -> Blocking:
    """Synchronisations, copies that are not asynchronous, and copies of pageable memory.

    A synchronisation that the same operator makes right after starting a copy to the device is
    that copy's, as in a plain `.to(device)`.
    """
    host, device = timeline.host, timeline.device
    calls = np.flatnonzero(host.kind == HostKind.RUNTIME)
    waits = calls[names_that(timeline, host.name[calls], _WAITS.search)]
    copies = np.flatnonzero((device.kind == DeviceKind.COPY) & (device.launch >= 0))
    launch, name = device.launch[copies], device.name[copies]
    to_device = launch[names_that(timeline, name, lambda n: read_copy_name(n)[0] == "HtoD")]
    pageable = launch[names_that(timeline, name, lambda n: read_copy_name(n)[1] == "pageable")]
    events = np.union1d(waits, pageable).astype(np.int64)
    return Blocking(events, np.isin(events, to_device) | _follows(timeline, events, to_device))


def _follows(timeline: Timeline, events: Column, copies: Column) -> Column:
    """Whether the last copy call before each event was made by the same operator."""
    copies = np.unique(copies)
    if not len(copies):
        return np.zeros(len(events), bool)
    parent = timeline.host.parent
    last = copies[np.maximum(np.searchsorted(copies, events) - 1, 0)]
    same: Column = (last < events) & (parent[events] >= 0) & (parent[last] == parent[events])
    return same
