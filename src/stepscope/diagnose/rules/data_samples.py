"""Data rules about making samples: slow, tiny, read from slow storage, augmented on the CPU."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepscope.analyze.replay import changes
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import at_place, place_of_line
from stepscope.diagnose.rules.loading import (
    DataWait,
    Loading,
    best_loading_fix,
    data_wait,
    loader_places,
    loading,
    loading_evidence,
    parts_evidence,
    reading_parts,
    reading_share,
    with_batch_time,
    with_part_halved,
)
from stepscope.record.finding import Evidence, Finding

_LEAST_PART = 0.2  # of making a batch: a part that takes less is not the one to blame


def _loader_bound(case: Case) -> Iterable[Finding]:
    """Where batches are made by the training process itself, or by as many workers as cores."""
    how = loading(case)
    if how is not None and data_wait(case, how) is DataWait.SLOW_SAMPLES:
        yield _of_run(case, how)
    elif case.show is None:
        yield from _of_trace(case)


LOADER_BOUND = Rule(
    id="data.loader_bound",
    cause="The step waits for batches, and what makes them is to blame.",
    find=_loader_bound,
    symptoms=("machine.few_cores",),
)


def _of_run(case: Case, how: Loading) -> Finding:
    part = next((one for one in how.parts if one["share"] >= _LEAST_PART), None)
    fix, predicted, kind = best_loading_fix(case, how)
    workers = fix.value if fix is not None and fix.name == "workers" else None
    most = ""
    if part is not None:
        place = (
            at_place(place_of_line(part)) if part["what"] != "line" else ""
        )  # a line's name is its place
        most = f" {part['share']:.0%} of that is {part['name']}{place}."
        if predicted is None:
            predicted = with_part_halved(case, how, part["name"], part["share"])
    alone = "in the training process itself, while nothing is computed"
    many = f"in each of {how.workers} workers, which cannot keep up"
    return Finding(
        id=LOADER_BOUND.id,
        title=f"{how.share:.0%} of the step is waiting for the data loader",
        why=(
            f"A batch takes {in_ms(how.batch_ms)} ms to make, "
            f"{many if how.workers else alone}.{most}"
        ),
        advice=_loader_advice(workers, part),
        share=how.share,
        evidence=(*loading_evidence(how), *parts_evidence(how)),
        where=loader_places(how, *([part] if part else ())),
        predicted=predicted,
        fix=fix,
        effort="one argument" if workers else "some lines",
        kind=kind,
        confidence="high" if fix is not None else "medium",
    )


def _loader_advice(workers: str | None, part: Mapping[str, Any] | None) -> str:
    cheap = "Make samples cheaper: do once, before training, what is the same each time"
    if part is not None:
        cheap += f"; {part['name']} first"
    if workers:
        return (
            f"Pass num_workers={workers} to the DataLoader: batches are then made while the step"
            f" computes. {cheap}."
        )
    return f"{cheap}; keep finished samples in memory, or on disk in the form they are used in."


def _of_trace(case: Case) -> Iterable[Finding]:
    """A trace alone tells how long the device waited, not for what."""
    trace = case.trace or {}
    wall = (trace.get("breakdown_ns") or {}).get("wall") or 0
    idle = (trace.get("idle_ns") or {}).get("loader")
    if idle is None:
        path = (trace.get("critical_path") or {}).get("by_category") or []
        idle = sum(one["ns"] for one in path if one["category"] == "data loading")
    share = idle / wall if wall else 0.0
    if share < LEAST_GAIN or case.step_ms <= 0:
        return
    words = "batches are made in workers while the step computes"
    predicted = case.predict(changes.scale_phase("data_wait", 0.0), words=words, doubt=0.3)
    if predicted is None and case.model is None:
        predicted = case.reach(case.step_ms * (1 - share), words=words, doubt=0.4)
    yield Finding(
        id=LOADER_BOUND.id,
        title=f"{share:.0%} of the step is waiting for the data loader",
        why="The loader is asked for a batch and nothing is computed until it comes.",
        advice=(
            "Give the DataLoader more workers (num_workers) and pinned memory; `stepscope run` on"
            " the program tells which transform or line of the dataset takes the time."
        ),
        share=share,
        evidence=(Evidence("waiting for data", share * case.step_ms, "ms a step"),),
        predicted=predicted,
        effort="one argument",
        kind="exact",
        confidence="medium",
    )


def _slow_storage(case: Case) -> Iterable[Finding]:
    """Where the step waits for data, and lines that read hold a good part of making it."""
    how = loading(case)
    if how is None or data_wait(case, how) is not DataWait.SLOW_STORAGE:
        return
    parts, share = reading_parts(case, how), reading_share(case, how)
    fix, predicted, kind = best_loading_fix(case, how)
    if predicted is not None and fix is not None and fix.name == "workers":
        # What waits for storage needs no core: workers may do better than the replay allows.
        least_ms = max(how.compute_ms, how.batch_ms / int(fix.value or 1), 1e-3)
        predicted = replace(predicted, high=max(predicted.high, case.step_ms / least_ms))
    each = share * float(how.source.get("ms_per_sample") or 0.0)
    read = ((case.show or {}).get("host") or {}).get("read_bytes")
    yield Finding(
        id=SLOW_STORAGE.id,
        title=f"Reading takes {share:.0%} of making a batch",
        why=(
            f"Each sample is read for {in_ms(each)} ms{at_place(place_of_line(parts[0]))}, and the"
            " step waits"
            f" {in_ms(how.wait_ms)} ms for its batch."
        ),
        advice=(
            "Keep samples in memory after the first epoch, or copy the data to a local disk or"
            " /dev/shm; pack many small files into one that is read in large pieces (LMDB, HDF5,"
            " a memory-mapped array). Workers hide what is left."
        ),
        share=how.share,
        evidence=(
            *loading_evidence(how),
            Evidence("reading a sample", each, "ms"),
            *([Evidence("read from disks", read / 1e6, "MB")] if read is not None else ()),
        ),
        where=loader_places(how, *parts[:2]),
        predicted=predicted,
        fix=fix,
        effort="one argument" if fix is not None and fix.name == "workers" else "some lines",
        kind=kind,
        confidence="medium",
    )


SLOW_STORAGE = Rule(
    id="data.slow_storage",
    cause="Reading samples takes most of the time to make a batch.",
    find=_slow_storage,
    symptoms=("machine.few_cores",),
)


_BATCHED_TIME = 0.15  # of the time one by one: 0.07 to 0.27 for samples of 16 to 512 bytes


def _tiny_samples(case: Case) -> Iterable[Finding]:
    """Where the step waits for batches of samples that take microseconds each."""
    how = loading(case)
    if how is None or data_wait(case, how) is not DataWait.TINY_SAMPLES:
        return
    source = how.source
    batch = round(source["ms_per_batch"] / source["ms_per_sample"])
    collate = source["collate_share"]
    yield Finding(
        id=TINY_SAMPLES.id,
        title=f"Batches of {batch:,} small samples are put together in Python",
        why=(
            f"A sample takes {1e3 * source['ms_per_sample']:.0f} µs: calls and copies per sample,"
            f" hardly any work. {collate:.0%} of a batch's {in_ms(how.batch_ms)} ms is collating."
        ),
        advice=(
            "Fetch whole batches: keep the data in tensors and index them with a batch of indices,"
            " by `__getitems__` of the dataset, or by a BatchSampler as `sampler` with"
            " batch_size=None. More workers would help little: handing over costs as much."
        ),
        share=how.share,
        evidence=(
            *loading_evidence(how),
            Evidence("a sample", 1e3 * source["ms_per_sample"], "µs"),
            Evidence("collating", 100 * collate, "% of making a batch"),
        ),
        where=loader_places(how, source),
        predicted=with_batch_time(
            case,
            how,
            _BATCHED_TIME,
            "a batch fetched at once takes about a seventh (a rule of thumb)",
        ),
        effort="some lines",
        kind="exact",
        confidence="high" if collate >= 0.3 else "medium",
    )


TINY_SAMPLES = Rule(
    id="data.tiny_samples",
    cause="Samples are so small that fetching them one by one is what takes the time.",
    find=_tiny_samples,
)


_ON_TENSORS = re.compile(
    r"(?i)resize|normali[sz]e|flip|crop|rotat|affine|perspective|jitter|blur|erasing|gr[ae]yscale|"
    r"noise|cutmix|mixup|color|solarize|equalize|posterize|sharpness|contrast|brightness|elastic|"
    r"augment|interpolate|convertimagedtype|todtype|spectrogram"
)
_LEAST_GPU_SHARE = 0.3


def _gpu_augmentation(case: Case) -> Iterable[Finding]:
    """Where not even a worker for each core hides loading, and tensor work is much of it."""
    how = loading(case)
    if how is None or case.device != "cuda" or how.share < LEAST_GAIN or not how.limits:
        return
    parts = [p for p in how.parts if p["what"] == "transform" and _ON_TENSORS.search(p["name"])]
    share = float(sum(part["share"] for part in parts))
    if share < _LEAST_GPU_SHARE or how.batch_ms / how.cores <= how.compute_ms:
        return
    names = " and ".join(part["name"] for part in parts[:2])
    yield Finding(
        id=GPU_AUGMENTATION.id,
        title=f"{share:.0%} of loading could be done on the GPU",
        why=(
            f"Even with a worker for each of {how.cores} cores a batch comes every"
            f" {in_ms(how.batch_ms / how.cores)} ms, while the rest of the step takes"
            f" {in_ms(how.compute_ms)} ms. {names} work on tensors, a batch at a time on the GPU."
        ),
        advice=(
            f"Leave decoding and cropping to the dataset; apply {names} to the whole batch after"
            " it is on the device (torchvision.transforms.v2 or kornia take CUDA batches)."
        ),
        share=how.share * share,
        evidence=(
            *loading_evidence(how),
            *(Evidence(p["name"], 100 * p["share"], "% of making a batch") for p in parts[:3]),
        ),
        where=loader_places(how, *parts[:2]),
        predicted=with_batch_time(
            case, how, 1 - share, f"{names} leave the processor; the GPU does them in no time"
        ),
        effort="some lines",
        kind="numeric",
        confidence="medium",
    )


GPU_AUGMENTATION = Rule(
    id="data.gpu_augmentation",
    cause="Transforms that the GPU could do keep the processor from delivering in time.",
    find=_gpu_augmentation,
)
