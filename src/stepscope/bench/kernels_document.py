"""The document of `stepscope bench kernels`."""

from typing import Any

from stepscope.analyze.timeline.roofline_ceilings import (
    Ceilings,
    ceilings_for,
    measured,
)
from stepscope.bench.document import document as bench_document
from stepscope.bench.kernels_count import Count
from stepscope.bench.kernels_record import Subject
from stepscope.bench.request import Request, Variant
from stepscope.record.timeline import Timeline

Document = dict[str, Any]


def ceilings_of(timeline: Timeline, device: str) -> Ceilings | None:
    """What the device can do: measured here, else as its maker says, else not known."""
    from stepscope.hardware.ceiling_cache import known_ceilings, load_ceilings
    from stepscope.hardware.ceilings import device_key

    if device == "cpu":
        kept = load_ceilings(device_key("cpu"))
        return measured(kept) if kept else None
    return ceilings_for(timeline, known_ceilings())


def document(
    subject: Subject,
    studied: Document,
    count: Count,
    fixes: list[Document],
    command: str,
    started: str,
) -> Document:
    """In the shape of all benchmarks, with its own part under "kernels"."""
    label = ",".join(subject.fixes) or "none"
    request = Request(
        models=(subject.model,),
        modes=(subject.mode,),
        devices=(subject.device,),
        batches=(subject.batch,),
        variants=(Variant(label, subject.fixes),),
        settings=tuple(sorted(subject.settings.items())),
        rounds=1,
    )
    kernels = {
        "model": subject.model,
        "mode": subject.mode,
        "batch": subject.batch,
        "device": subject.device,
        "fixes": list(subject.fixes),
        "applied": fixes,
        "ncu": {"used": bool(count.counters), "why_not": count.why, "seconds": count.seconds},
        **studied,
    }
    return bench_document(request, [], {}, command, started, notes(kernels), kernels=kernels)


def notes(kernels: Document) -> list[str]:
    """What must be known to read the numbers."""
    found = []
    if kernels["on"] == "host":
        found.append(
            "a CPU runs no kernels: times are those of operators on the host, all their threads"
            " at work, as recorded; recording itself adds to many short ones"
        )
    elif not kernels["ncu"]["used"]:
        found.append(f"FLOPs and bytes are by the model alone: {kernels['ncu']['why_not']}")
    else:
        found.append(
            f"counted: {kernels['counted']:,.0f} of {kernels['launched']:,.0f} kernels a step,"
            f" in {kernels['ncu']['seconds']:.0f} s of ncu"
        )
    limits = kernels["ceilings"]
    if limits is None:
        found.append("ceilings are not known here: stepscope doctor measures them")
    elif limits["source"] == "datasheet":
        found.append("ceilings are the maker's: stepscope doctor measures those of this device")
    for fix in kernels["applied"]:
        if fix["state"] != "applied":
            why = f": {fix['reasons'][-1]}" if fix["reasons"] else ""
            found.append(f"fix {fix['name']}: {fix['state']}{why}")
    return found
