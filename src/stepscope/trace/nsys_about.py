"""What an export says about the recording: its clock, threads, devices and their numbering."""

from typing import Any

import numpy as np

from stepscope.record.timeline import NOTHING, Column, DeviceInfo, Thread
from stepscope.trace.nsys_rows import process_of
from stepscope.trace.nsys_tables import Database


def utc_offset(database: Database) -> int:
    """What to add to the export's times for nanoseconds since 1970, 0 where it is not said."""
    session = database.records("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
    analysis = database.records("ANALYSIS_DETAILS", ["startTime"])
    began = _integer(session[0]["utcEpochNs"]) if session else None
    # Times count from the start of the session or, in newer exports, on the system's clock.
    return (
        0
        if began is None
        else began - ((_integer(analysis[0]["startTime"]) if analysis else 0) or 0)
    )


def threads_of(database: Database, identifiers: Column) -> tuple[list[Thread], Column]:
    """The threads behind serialised ids, and for each id which one it is."""
    labels = {
        row["globalTid"]: row["nameId"]
        for row in database.records("ThreadNames", ["globalTid", "nameId"])
    }
    known, which = np.unique(identifiers, return_inverse=True)
    wanted = [_integer(labels.get(key)) or NOTHING for key in known.tolist()]
    texts = database.strings(np.array(wanted, np.int64))
    threads = [
        Thread(str(key >> 24 & 0xFFFFFF), str(key & 0xFFFFFF), texts.get(name, ""))
        if key >= 0
        else Thread("unknown", "unknown")
        for key, name in zip(known.tolist(), wanted, strict=True)
    ]
    return threads, which.astype(np.int32)


def device_numbers(database: Database) -> dict[tuple[int, int], int]:
    """(process, the number it knows a device by) to the machine's number for it.

    Processes started with different CUDA_VISIBLE_DEVICES all call their own device 0.
    """
    rows = database.records("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"])
    return {
        (row["pid"], row["cudaId"]): row["gpuId"]
        for row in rows
        if all(_integer(value) is not None for value in row.values())
    }


def devices_of(database: Database) -> list[DeviceInfo]:
    """The GPUs of the machine, by its own numbers."""
    columns = ["id", "name", "totalMemory", "smCount", "threadsPerWarp", "maxWarpsPerSm"]
    capability = ["computeMajor", "computeMinor"]
    devices = []
    for row in database.records("TARGET_INFO_GPU", [*columns, *capability]):
        numbers = {column: _integer(row[column]) for column in row}
        major, minor = (numbers[c] for c in capability)
        warp, warps = numbers["threadsPerWarp"], numbers["maxWarpsPerSm"]
        if numbers["id"] is not None:
            devices.append(
                DeviceInfo(
                    index=numbers["id"],
                    name=row["name"] if isinstance(row["name"], str) else None,
                    memory_bytes=numbers["totalMemory"],
                    capability=None if major is None or minor is None else (major, minor),
                    multiprocessors=numbers["smCount"],
                    warp_size=warp,
                    max_threads_per_sm=None if warp is None or warps is None else warp * warps,
                )
            )
    return devices


def only_process(threads: Column) -> int | None:
    """The one process that calls came from; None where there were several or none."""
    processes = np.unique(process_of(threads[threads >= 0]))
    return int(processes[0]) if len(processes) == 1 else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**62 else None
