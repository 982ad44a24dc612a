"""Which device and stream work ran on, told apart across the processes of one report."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.record.timeline import NOTHING, Column, Quality, Stream
from stepscope.trace.nsys_names import sync_name
from stepscope.trace.nsys_rows import Interned, Rows, distinct, mapped, process_of, with_times
from stepscope.trace.nsys_tables import Database

SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_NO_STREAM = 0xFFFFFFFF  # CUPTI's mark for a synchronisation of a whole context


def numbered(rows: Rows, numbers: Mapping[tuple[int, int], int]) -> Rows:
    """Rows with the machine's numbers for devices where they are known."""
    columns = [rows["process"], rows["device"]]
    return {**rows, "device": mapped(columns, lambda p, d: numbers.get((p, d), d), np.int64)}


def read_syncs(database: Database, names: Interned, work: Rows, quality: Quality) -> Rows:
    """Rows with start, end, name, process, device, stream, correlation and waits_for.

    Synchronisations name device 0 whatever their device is: their context tells it, through the
    work that ran there.
    """
    columns = ["start", "end", "contextId", "streamId", "correlationId", "globalPid"]
    rows = database.integers(SYNCS, [*columns, "deviceId", "syncType", "eventSyncId"])
    rows = with_times(rows, quality, "synchronisations")
    process = process_of(rows["globalPid"])
    contexts = distinct([work["process"], work["context"], work["device"]])[0]
    of_context = {(p, c): d for p, c, d in contexts}

    def device(own: int, context: int, said: int) -> int:
        return of_context.get((own, context), said)

    return {
        "start": rows["start"],
        "end": rows["end"],
        "name": mapped([rows["syncType"]], lambda kind: names[sync_name(kind)]),
        "process": process,
        "device": mapped([process, rows["contextId"], rows["deviceId"]], device, np.int64),
        "stream": np.where(rows["streamId"] == _NO_STREAM, NOTHING, rows["streamId"]),
        "correlation": rows["correlationId"],
        "waits_for": _recorded_on(database, process, rows["eventSyncId"]),
    }


def streams_of(groups: Sequence[Rows]) -> tuple[list[Stream], list[Column]]:
    """The streams of all groups, and one int32 column for each group; NOTHING stays NOTHING."""
    keys = [np.concatenate([g[c] for g in groups]) for c in ("process", "device", "stream")]
    rows, which = distinct(keys)
    real = [row for row in rows if row[2] != NOTHING]
    shared = Counter((device, stream) for _, device, stream in real)
    streams = [
        Stream(device, str(stream) if shared[device, stream] == 1 else f"{stream} of {process}")
        for process, device, stream in real
    ]
    index = {row: n for n, row in enumerate(real)}
    column = np.array([index.get(row, NOTHING) for row in rows], np.int32)[which]
    cuts = np.cumsum([len(group["stream"]) for group in groups])[:-1]
    return streams, np.split(column, cuts)


def _recorded_on(database: Database, process: Column, event: Column) -> Column:
    """The stream on which an awaited event was recorded, NOTHING where that is not known."""
    rows = database.integers(EVENTS, ["globalPid", "eventSyncId", "streamId"])
    of = [process_of(rows["globalPid"]), rows["eventSyncId"], rows["streamId"]]
    known = {(p, e): s for p, e, s in distinct(of)[0] if e != NOTHING}
    return mapped([process, event], lambda p, e: known.get((p, e), NOTHING), np.int64)
