"""The document of a search for a batch size: what `--json` hands out and the screen draws."""

import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stepscope.launch.program import Program
from stepscope.record.privacy import masked_arguments
from stepscope.record.version import __version__
from stepscope.stats.verdict import compare, noise_floor
from stepscope.tune.batch_bounds import Bounds
from stepscope.tune.batch_knee import knee, still_growing
from stepscope.tune.batch_measured import Point
from stepscope.tune.batch_program import Searched, Wanted
from stepscope.tune.batch_search import Search
from stepscope.tune.batch_training import training_words
from stepscope.tune.batch_words import verdict_words

SCHEMA = "stepscope.batch/1"
Document = dict[str, Any]


def answer(search: Search, bounds: Bounds, own: int | None) -> Document:
    """Curve, knee and largest. `own` is the program's batch size, None where it has none."""
    points, fit = search.sizes.points, search.roomy()
    found = knee(fit, bounds.within)
    best = max((one.samples_per_s or 0.0 for one in fit), default=0.0)
    rows = [_row(one, bounds.memory_bytes, best, one in fit) for one in points]
    at = None if found is None else next(row for row in rows if row["batch"] == found.batch)
    if found is not None and at is not None:
        own_fits = own is not None and search.sizes.fits(own)
        at = at | {
            "growing": found.batch == fit[-1].batch and still_growing(fit, bounds.within),
            "speedup": _speedup(search, own, found.batch) if own_fits and own is not None else None,
        }
    return {
        "own": own,
        "knee": at,
        "largest": _largest(search, rows),
        "stopped": None if search.stop is None else asdict(search.stop),
        "curve": rows,
        "memory_bytes": bounds.memory_bytes,
        "headroom": bounds.headroom,
        "within": bounds.within,
        "processes": search.sizes.processes,
        "seconds": search.sizes.seconds,
        "notes": [*dict.fromkeys(search.notes), *_noise(found, bounds)],
    }


def _noise(found: Point | None, bounds: Bounds) -> list[str]:
    """Said where processes of one size differ by more than sizes are told apart by."""
    if found is None or not found.samples_per_s or found.low is None or found.high is None:
        return []
    share = (found.high - found.low) / 2 / found.samples_per_s
    if share <= max(bounds.within, 0.05):
        return []
    return [
        f"processes of one size differ (±{min(share, 1):.0%}): sizes that are closer are not told"
        " apart; a quieter machine or longer trials (--seconds) tell more"
    ]


def _row(one: Point, memory_bytes: float | None, best: float, fit: bool) -> Document:
    share = one.memory_bytes / memory_bytes if one.memory_bytes and memory_bytes else None
    of_best = one.samples_per_s / best if one.samples_per_s and best else None
    return asdict(one) | {"memory_share": share, "of_best": of_best, "keeps_headroom": fit}


def _speedup(search: Search, own: int, batch: int) -> Document | None:
    """Of samples per second against the program's own size; None where that is the one."""
    if own == batch:
        return None
    processes = {
        one.batch: [got.sample_ms for got in search.sizes.of(one.batch)]
        for one in search.sizes.points
        if one.ok
    }
    found = compare(processes[own], processes[batch], noise_floor([*processes.values()]))
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "verdict": found.verdict.name,
    }


def _largest(search: Search, rows: Sequence[Document]) -> Document | None:
    """The largest that ran; `bounded` where a larger one did not fit or memory was nearly full."""
    batch = search.sizes.largest
    if batch is None:
        return None
    row = next(row for row in rows if row["batch"] == batch)
    full = (row["memory_share"] or 0.0) >= 0.9
    bounded = search.sizes.too_large is not None or full
    return row | {"bounded": bounded, "too_large": search.sizes.too_large}


def document(searched: Searched, wanted: Wanted, program: Program, started: str) -> Document:
    """All of a search in a program."""
    from stepscope.hardware.machine import describe

    seen, machine = searched.seen, describe()
    found = answer(searched.search, searched.bounds, seen.batch)
    batch = found["knee"]["batch"] if found["knee"] else None
    return {
        "schema": SCHEMA,
        "program": program.name,
        "argv": masked_arguments(program.arguments),
        "fixes": list(wanted.fixes),
        "started": started,
        "device": seen.device,
        "device_name": seen.device_name,
        "machine": machine,
        "versions": {
            "python": platform.python_version(),
            "torch": (machine["torch"] or {}).get("version"),
            "stepscope": __version__,
        },
        "what": searched.what,
        "samples": seen.samples,
        **found,
        "verdict": verdict_words(found),
        "training": _training(searched, batch),
        "command": _command(program, wanted, seen.batch, batch),
    }


def _training(searched: Searched, batch: int | None) -> list[str]:
    seen = searched.seen
    if batch is None or searched.what != "training":
        return []
    return training_words(seen.batch, batch, seen.samples, seen.drop_last, seen.optimizers)


def _command(program: Program, wanted: Wanted, own: int, batch: int | None) -> str | None:
    """What runs the program with the knee; None where there is none or it is the program's own."""
    if batch is None or batch == own:
        return None
    fixes = [word for fix in (f"batch={batch}", *wanted.fixes) for word in ("--fix", fix)]
    module = ["-m"] if program.module else []
    rest = [program.target, *masked_arguments(program.arguments)]
    return shlex.join(["stepscope", "run", *fixes, *module, *rest])
