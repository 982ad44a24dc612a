"""How far a point's numbers can be trusted, in words."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepscope.stats.steady import unstable

Record = Mapping[str, Any]
_NEIGHBOURS: Final = 0.1  # share of the machine's cores that others may keep busy unmentioned


def unstable_why(measured: Sequence[Record]) -> str | None:
    """Why the times of a point are not to be relied on; None if they are."""
    if not measured:
        return None
    if not all(one["warmup"]["settled"] for one in measured):
        return "it had not settled when its warm-up ended"
    processes = [one["series_ms"] for one in measured if one["series_ms"]]
    return unstable(processes) if processes else "too few calls to tell"


def not_applied(records: Sequence[Record]) -> list[dict[str, str]]:
    """The fixes that were asked for and took hold of nothing, with their reasons."""
    return [
        {"name": fix["name"], "why": "; ".join(fix["reasons"]) or "it took hold of nothing"}
        for fix in records[-1]["fixes"]
        if fix["state"] == "not applicable"
    ]


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader should know of the circumstances, each once."""
    fine = [record for record in records if record["status"] == "ok"]
    found = [note for record in fine for note in record["measured"].get("notes", ())]
    for record in fine:
        measured, machine = record["measured"], record["machine"]
        found += [f"throttled: {reason}" for reason in machine["throttle"]]
        if machine["other_processes"]:
            found.append("other processes computed on the GPU meanwhile")
        cores = os.cpu_count() or 1
        if (machine.get("other_cores") or 0) > max(0.5, _NEIGHBOURS * cores):
            found.append("other programs kept the processors busy meanwhile")
        if measured.get("flops_why_not"):
            found.append(f"FLOPs not counted: {measured['flops_why_not']}")
    if fine:
        found += [
            f"process {record['round']} did not count: {record['why'] or record['status']}"
            for record in records
            if record["status"] != "ok"
        ]
    return list(dict.fromkeys(found))
