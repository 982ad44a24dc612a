"""One `stepscope batch`: its trials, its folder, its document, and what it says about training."""

import json
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from stepscope.batch.program import (
    BatchListener,
    BatchRequest,
    FinishedSearch,
    ProgramFacts,
    free_host_bytes,
    read_program_facts,
    search_program,
)
from stepscope.batch.search import BatchSearch, SearchBounds
from stepscope.batch.sizes import SizeResult, knee_size, still_growing
from stepscope.launch.program import Program
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial import Trial, TrialRequest
from stepscope.measure.trial_host import host_named
from stepscope.record.privacy import masked_arguments
from stepscope.record.version import __version__
from stepscope.stats.verdict import compare_processes, noise_floor
from stepscope.store.folder import create_folder

Optimizers = Sequence[tuple[str, float | None]]

_LAYERWISE = ("lamb", "lars")
_LINEAR = ("sgd", "muon", "lion", "asgd")


def training_words(
    before: int, after: int, samples: int | None, drop_last: bool, optimizers: Optimizers
) -> list[str]:
    """For a program that trains: updates, learning rate, schedule, losses. Empty where the batch
    stays. `samples` of an epoch, None if not known."""
    if before == after:
        return []
    return [
        _updates(before, after, samples, drop_last),
        *(_rate(name, lr, after / before) for name, lr in optimizers[:2]),
        _schedule(after / before),
        "Losses cannot be compared step by step: compare at equal numbers of samples, and judge"
        " by the validation score at the end.",
    ]


def updates_per_epoch(samples: int, batch: int, drop_last: bool) -> int:
    """How many batches an epoch makes."""
    return samples // batch if drop_last else ceil(samples / batch)


def _updates(before: int, after: int, samples: int | None, drop_last: bool) -> str:
    if samples is None:
        more = "fewer" if after > before else "more"
        factor = max(before, after) / min(before, after)
        return f"{factor:.3g} times {more} updates for the same data."
    was, now = (updates_per_epoch(samples, batch, drop_last) for batch in (before, after))
    words = f"{now:,} updates an epoch instead of {was:,}."
    lost = samples % after if drop_last else 0
    if lost > samples % before and lost > samples / 20:
        words += f" drop_last leaves out {lost:,} of {samples:,} samples an epoch."
    return words


def _rate(name: str, lr: float | None, factor: float) -> str:
    kind = name.lower()
    if any(word in kind for word in _LAYERWISE):
        return f"{name} is made for large batches: its usual rule is the square root."
    linear = kind in _LINEAR
    scaled = factor if linear else sqrt(factor)
    rule = "in proportion to the batch" if linear else "with the square root of the batch"
    start = f"{name}: scale the learning rate {rule}, ×{scaled:.3g}"
    if lr:
        start += f" ({lr:.4g} → {lr * scaled:.3g})"
    return start + (", after a warm-up." if factor > 1 else ".")


def _schedule(factor: float) -> str:
    way = f"divide by {factor:.3g}" if factor > 1 else f"multiply by {1 / factor:.3g}"
    return f"What the program counts in steps (schedules, limits) stays as it is: {way}."


Document = dict[str, Any]
_NOTHING_KNOWN = 10  # an interval so many times as high as low says nothing


def verdict_words(document: Document) -> str:
    """What to do, from what `answer` gives."""
    at, own, largest = document["knee"], document["own"], document["largest"]
    if at is None:
        if largest is None:
            return "No batch size that was tried runs."
        return f"No batch size that runs leaves {document['headroom']:.0%} of memory free."
    batch = at["batch"]
    if batch == own:
        text = f"Keep the program's own batch of {batch:,}: {_none_better(document)}"
    else:
        text = f"Batch {batch:,}: {at['samples_per_s']:,.0f} samples/s{_against(at, own)}"
    if at["growing"]:
        text += "; throughput still grows there"
    once = at["processes"] < 2
    return f"{text}{' (measured once: not confirmed)' if once else ''}."


def _none_better(document: Document) -> str:
    within, stopped = document["within"], document["stopped"] or {}
    if len(document["curve"]) == 1:
        return f"no other could be tried ({stopped.get('words', 'nothing else runs')})"
    return f"no other tried gives over {within:.0%} more samples/s"


def _against(at: Document, own: int | None) -> str:
    gain = at["speedup"]
    if gain is None:
        return ""
    words = f", {gain['ratio']:.2f}× the program's own {own:,}"
    if gain["verdict"] != "UNCLEAR":
        return f"{words} ({gain['low']:.2f}–{gain['high']:.2f})"
    if gain["high"] > _NOTHING_KNOWN * gain["low"]:
        return f"{words} (unclear: processes differ too much to say)"
    return f"{words} ({gain['low']:.2f}–{gain['high']:.2f}, unclear)"


SCHEMA = "stepscope.batch/1"


def search_answer(search: BatchSearch, bounds: SearchBounds, own: int | None) -> Document:
    """Curve, knee and largest. `own` is the program's batch size, None where it has none."""
    points, fit = search.sizes.points, search.roomy()
    found = knee_size(fit, bounds.within)
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


def _noise(found: SizeResult | None, bounds: SearchBounds) -> list[str]:
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


def _row(one: SizeResult, memory_bytes: float | None, best: float, fit: bool) -> Document:
    share = one.memory_bytes / memory_bytes if one.memory_bytes and memory_bytes else None
    of_best = one.samples_per_s / best if one.samples_per_s and best else None
    return asdict(one) | {"memory_share": share, "of_best": of_best, "keeps_headroom": fit}


def _speedup(search: BatchSearch, own: int, batch: int) -> Document | None:
    """Of samples per second against the program's own size; None where that is the one."""
    if own == batch:
        return None
    processes = {
        one.batch: [got.sample_ms for got in search.sizes.of(one.batch)]
        for one in search.sizes.points
        if one.ok
    }
    found = compare_processes(processes[own], processes[batch], noise_floor([*processes.values()]))
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "verdict": found.verdict.name,
    }


def _largest(search: BatchSearch, rows: Sequence[Document]) -> Document | None:
    """The largest that ran; `bounded` where a larger one did not fit or memory was nearly full."""
    batch = search.sizes.largest
    if batch is None:
        return None
    row = next(row for row in rows if row["batch"] == batch)
    full = (row["memory_share"] or 0.0) >= 0.9
    bounded = search.sizes.too_large is not None or full
    return row | {"bounded": bounded, "too_large": search.sizes.too_large}


def batch_document(
    searched: FinishedSearch, wanted: BatchRequest, program: Program, started: str
) -> Document:
    """All of a search in a program."""
    from stepscope.hardware.machine import describe_machine

    seen, machine = searched.seen, describe_machine()
    found = search_answer(searched.search, searched.bounds, seen.batch)
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


def _training(searched: FinishedSearch, batch: int | None) -> list[str]:
    seen = searched.seen
    if batch is None or searched.what != "training":
        return []
    return training_words(seen.batch, batch, seen.samples, seen.drop_last, seen.optimizers)


def _command(program: Program, wanted: BatchRequest, own: int, batch: int | None) -> str | None:
    """What runs the program with the knee; None where there is none or it is the program's own."""
    if batch is None or batch == own:
        return None
    fixes = [word for fix in (f"batch={batch}", *wanted.fixes) for word in ("--fix", fix)]
    module = ["-m"] if program.module else []
    rest = [program.target, *masked_arguments(program.arguments)]
    return shlex.join(["stepscope", "run", *fixes, *module, *rest])


DOCUMENT_FILE = "batch.json"


class BatchSession:
    """One `stepscope batch`: its trials lie in `folder`, and in the end its document."""

    def __init__(
        self, program: Program, out: Path | None, cwd: Path, allow_writes: bool = False
    ) -> None:
        """Raises UsageError for a folder that cannot be used."""
        self.folder = create_folder(out, False, cwd, prefix="batch-")
        self._program = program
        self._runner = TrialRunner(program, self.folder, cwd, host_named(None), allow_writes)
        self._available = free_host_bytes()
        self._first: Trial | None = None
        self._own: int | None = None

    def run(self, wanted: BatchRequest, hear: BatchListener) -> tuple[dict[str, Any], bool]:
        """The document, and whether the search was interrupted."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._runner:
            searched = search_program(wanted, self._trial, self._look, hear)
        found = batch_document(searched, wanted, self._program, started)
        found["folder"] = str(self.folder)
        text = json.dumps(found, indent=1, allow_nan=False)
        (self.folder / DOCUMENT_FILE).write_text(text + "\n")
        return found, searched.interrupted

    def _trial(self, ask: TrialRequest) -> Trial:
        if self._first is not None and self._own is not None:
            larger = max(1.0, _batch(ask, self._own) / self._own)
            seconds = self._first.seconds * larger
            self._runner.baseline = replace(self._first, seconds=seconds)
        trial = self._runner(ask)
        self._first = self._first or trial
        return trial

    def _look(self, trial: Trial) -> ProgramFacts:
        seen = read_program_facts(self._runner.folder_of(trial.number), self._available)
        self._own = seen.batch
        return seen


def _batch(ask: TrialRequest, own: int) -> int:
    """The batch size a trial asks for."""
    sizes = [fix.partition("=")[2] for fix in ask.fixes if fix.startswith("batch=")]
    return int(sizes[0]) if sizes else own
