"""How far a recording can be trusted, in sentences."""

from typing import Any

_NOTICEABLE = 0.005  # of the device's or the recording's time


def quality_notes(document: dict[str, Any]) -> list[str]:
    """What a reader must know before believing the numbers; empty where there is nothing."""
    quality, wall = document["quality"], document["breakdown_ns"]["wall"] or 1
    notes = list(quality["notes"])
    for what, tally in (("repaired", quality["repaired"]), ("left out", quality["dropped"])):
        if tally:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in tally.items())
            notes.append(f"{what} of {quality['read']:,} events: {reasons}")
    if quality["graph_opaque_ns"] > _NOTICEABLE * wall:
        share = quality["graph_opaque_ns"] / sum(k["total_ns"] for k in document["kernels"])
        notes.append(
            f"{quality['graph_kernels']:,} kernels ({share:.0%} of device time) came out of CUDA"
            " graphs: no operator accounts for them"
        )
    if quality["skewed_launches"]:
        notes.append(
            f"{quality['skewed_launches']:,} launches seem to come after their work: the clocks of"
            " host and device differ a little"
        )
    if (quality["profiler_share"] or 0) > _NOTICEABLE:
        notes.append(f"the profiler's own work took {quality['profiler_share']:.1%} of the time")
    if document["steps"]["outside_ns"] > _NOTICEABLE * wall:
        outside = document["steps"]["outside_ns"] / 1e6
        notes.append(f"{outside:,.1f} ms of device work lie outside the steps, in no step's time")
    return notes
