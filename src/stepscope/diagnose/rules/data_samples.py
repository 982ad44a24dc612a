"""Data rules about making samples: slow, tiny, read from slow storage, augmented on the CPU."""

import re
from collections.abc import Iterable
from pathlib import PurePath

from msgspec.structs import replace

from stepscope.analyze.replay import changes
from stepscope.analyze.run.data_pipeline import PipelinePart
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import idle_share
from stepscope.diagnose.rules.loading import (
    DataWait,
    Loading,
    loader_setting,
    loading,
    part_evidence,
    waiting_because,
)
from stepscope.record.facts import SlotKind
from stepscope.record.finding import ChangeKind, Confidence, Effort, Evidence, Finding
from stepscope.record.kinds import IdleCause, SampleWork

_LEAST_PART = 0.2  # of making a batch: a smaller part is not to blame


@rule(
    "data.loader_bound",
    "The step waits for batches because samples are slow to make.",
    symptoms=("machine.few_cores",),
)
def loader_bound(case: Case) -> Iterable[Finding]:
    """The training process loads the batches itself, or as many workers as cores cannot keep up."""
    how = loading(case)
    if how is not None and how.waits_because is DataWait.SLOW_SAMPLES:
        yield _of_run(case, how)
    elif case.show is None:
        yield from _of_trace(case)


def _of_run(case: Case, how: Loading) -> Finding:
    part = next((one for one in how.parts if one.share >= _LEAST_PART), None)
    fix, predicted, kind = how.best_fix()
    workers = fix.value if fix is not None and fix.name == "workers" else None
    if part is not None and predicted is None:
        found = how.with_batch_time(1 - part.share / 2, f"if {part.name} took half as long")
        predicted = found and replace(found, low=1.0)
    first = most = ""
    if part is not None:
        first = f", {part.name} first"
        place = _at(part) if part.what != SlotKind.LINE else ""  # a line's name is its place
        most = f" {part.share:.0%} of that is {part.name}{place}."
    makers = "in the training process itself: num_workers=0"
    if how.workers:
        makers = f"in each of {how.workers} workers, which cannot keep up"
    return Finding(
        id=loader_bound.id,
        title=_waits_for_loader(case),
        why=f"A batch takes {in_ms(how.batch_ms)} ms to make, {makers}.{most}",
        advice=f"Make samples cheaper: preprocess once, before training{first}"
        + ("." if workers else ", and keep the result in memory or on disk.")
        + (f" {how.crowd}" if how.crowd else ""),
        settings=(loader_setting("num_workers", workers),) if workers else (),
        share=how.share,
        evidence=(*how.evidence, *part_evidence(how.parts[:3])),
        where=how.places(*([part] if part else ())),
        predicted=predicted,
        fix=fix,
        refused=() if fix is not None else how.refused,
        effort=Effort.ONE_ARGUMENT if workers else Effort.FEW_LINES,
        kind=kind,
        confidence=Confidence.HIGH if fix is not None else Confidence.MEDIUM,
    )


def _waits_for_loader(case: Case) -> str:
    who = "GPU waits" if case.device == "cuda" else "Training waits"
    return f"{who} for the data loader"


def _at(part: PipelinePart) -> str:
    """A part's line for a sentence: " (train.py:20)", or "" if unknown."""
    return f" ({PurePath(part.file).name}:{part.line})" if part.file else ""


def _of_trace(case: Case) -> Iterable[Finding]:
    """A trace alone shows how long the device waited, not for what."""
    share = idle_share(case, IdleCause.LOADER)
    if share is None and case.trace is not None:
        path, wall = case.trace.critical_path, case.trace.breakdown_ns.get("wall")
        parts = path.by_category if path else ()
        share = sum(p.ns for p in parts if p.category == "data loading") / wall if wall else None
    if share is None or share < LEAST_GAIN or case.step_ms <= 0:
        return
    reason = "workers load batches while the step computes"
    predicted = case.predict(changes.scale_phase("data_wait", 0.0), reason=reason, doubt=0.3)
    if predicted is None and case.model is None:
        predicted = case.reach(case.step_ms * (1 - share), reason, doubt=0.4)
    yield Finding(
        id=loader_bound.id,
        title=_waits_for_loader(case),
        why=f"Nothing computes for {share:.0%} of the step while the loader makes a batch.",
        advice="Use more loader workers (num_workers) and pinned memory; `stepscope run` on the "
        "program shows which transform or line of the dataset is slow.",
        share=share,
        evidence=(Evidence("data wait", share * case.step_ms, "ms per step"),),
        predicted=predicted,
        effort=Effort.ONE_ARGUMENT,
        confidence=Confidence.MEDIUM,
    )


@rule(
    "data.slow_storage",
    "Reading samples dominates the time to make a batch.",
    symptoms=("machine.few_cores",),
)
def slow_storage(case: Case) -> Iterable[Finding]:
    """The step waits for data, and reading takes 40% of making a batch."""
    how = waiting_because(case, DataWait.SLOW_STORAGE)
    if how is None:
        return
    found = _of_work(how, slow_storage.id, SampleWork.READING, how.reading_parts)
    host = case.show.host if case.show else None
    read = host.read_bytes if host else None
    yield replace(
        found,
        advice="Cache samples in memory after the first epoch, or copy the data to a local disk "
        "or /dev/shm; pack small files into one that is read in large chunks (LMDB, HDF5, a "
        "memory-mapped array).",
        evidence=(
            *found.evidence,
            *([Evidence("read from disk", read / 1e6, "MB")] if read is not None else ()),
        ),
    )


@rule(
    "data.slow_decoding",
    "Decoding samples dominates the time to make a batch.",
    symptoms=("machine.few_cores",),
)
def slow_decoding(case: Case) -> Iterable[Finding]:
    """The step waits for data, and decoding takes 40% of making a batch, on a working core."""
    how = waiting_because(case, DataWait.SLOW_DECODING)
    if how is None:
        return
    found = _of_work(how, slow_decoding.id, SampleWork.DECODING)
    yield replace(
        found,
        advice="Decode once and keep the arrays (in memory, or a memory-mapped file); store images "
        "no larger than training needs; or use a faster decoder (Image.draft for smaller JPEGs, "
        "TurboJPEG, torchvision.io, on a GPU nvJPEG). A faster disk gains nothing.",
    )


def _of_work(
    how: Loading, name: str, work: SampleWork, parts: list[PipelinePart] | None = None
) -> Finding:
    """The finding that one kind of work takes most of making a batch. `parts` None: those that are
    known to do it."""
    parts = how.parts_that(work) if parts is None else parts
    share = min(1.0, sum(part.share for part in parts))
    fix, predicted, kind = how.best_fix()
    workers = fix.value if fix is not None and fix.name == "workers" else None
    sample_ms = (how.source.ms_per_sample if how.source else None) or 0.0
    other = SampleWork.DECODING if work is SampleWork.READING else SampleWork.READING
    beside = sum(part.share for part in how.parts_that(other) if part not in parts)
    return Finding(
        id=name,
        title=f"{work.capitalize()} takes {share:.0%} of the time to make a batch",
        why=f"{work.capitalize()} a sample takes {in_ms(share * sample_ms)} ms{_at(parts[0])}"
        + (f", {other} it {in_ms(beside * sample_ms)} ms" if beside else "")
        + f"; the step waits {in_ms(how.wait_ms)} ms for its batch.",
        advice="",
        settings=(loader_setting("num_workers", workers),) if workers else (),
        share=how.share,
        evidence=(*how.evidence, Evidence(f"{work} a sample", share * sample_ms, "ms")),
        where=how.places(*parts[:2]),
        predicted=predicted,
        fix=fix,
        refused=() if fix is not None else how.refused,
        effort=Effort.ONE_ARGUMENT if workers else Effort.FEW_LINES,
        kind=kind,
        confidence=Confidence.MEDIUM,
    )


_BATCHED_TIME = 0.15  # of the time for single fetches: 0.07 to 0.27 for samples of 16 to 512 bytes


@rule("data.tiny_samples", "Samples are tiny: fetching them one by one takes the time.")
def tiny_samples(case: Case) -> Iterable[Finding]:
    """The step waits for batches of many samples that take microseconds each."""
    how = waiting_because(case, DataWait.TINY_SAMPLES)
    if how is None:
        return
    source = how.source
    if source is None or source.ms_per_sample is None:
        return
    batch = round(source.ms_per_batch / source.ms_per_sample)
    collate = source.collate_share
    reason = "a batch fetched at once takes about a seventh of the time (rule of thumb)"
    yield Finding(
        id=tiny_samples.id,
        title=f"Python collates {batch:,} tiny samples per batch",
        why=f"A sample takes {1e3 * source.ms_per_sample:.0f} µs, mostly call overhead; "
        f"{collate:.0%} of a batch's {in_ms(how.batch_ms)} ms is collating.",
        advice="Fetch whole batches: keep the data in tensors and index them with a batch of "
        "indices, through the dataset's `__getitems__` or a BatchSampler as `sampler` with "
        "batch_size=None. Workers help little: handing batches over costs as much.",
        share=how.share,
        evidence=(
            *how.evidence,
            Evidence("sample", 1e3 * source.ms_per_sample, "µs"),
            Evidence("collating", 100 * collate, "% of a batch"),
        ),
        where=how.places(source),
        predicted=how.with_batch_time(_BATCHED_TIME, reason),
        confidence=Confidence.HIGH if collate >= 0.3 else Confidence.MEDIUM,
    )


_ON_TENSORS = re.compile(
    r"(?i)resize|normali[sz]e|flip|crop|rotat|affine|perspective|jitter|blur|erasing|gr[ae]yscale|"
    r"noise|cutmix|mixup|color|solarize|equalize|posterize|sharpness|contrast|brightness|elastic|"
    r"augment|interpolate|convertimagedtype|todtype|spectrogram"
)
_LEAST_GPU_SHARE = 0.3


@rule(
    "data.gpu_augmentation",
    "Transforms the GPU could run keep the CPU from delivering batches in time.",
)
def gpu_augmentation(case: Case) -> Iterable[Finding]:
    """A worker per core does not hide loading, and tensor transforms are 30% of it."""
    how = loading(case)
    if how is None or case.device != "cuda" or how.share < LEAST_GAIN or not how.limits:
        return
    parts = [p for p in how.parts if p.what == SlotKind.TRANSFORM and _ON_TENSORS.search(p.name)]
    share = float(sum(part.share for part in parts))
    if share < _LEAST_GPU_SHARE or how.batch_ms / how.cores <= how.compute_ms:
        return
    names = " and ".join(part.name for part in parts[:2])
    yield Finding(
        id=gpu_augmentation.id,
        title=f"{share:.0%} of loading could run on the GPU",
        why=f"Even with a worker on each of {how.cores} cores a batch arrives every "
        f"{in_ms(how.batch_ms / how.cores)} ms; the rest of the step takes "
        f"{in_ms(how.compute_ms)} ms. {names} can run on whole batches on the GPU.",
        advice=f"Decode and crop in the dataset; apply {names} to the whole batch on the GPU "
        "(torchvision.transforms.v2 and kornia take CUDA batches).",
        share=how.share * share,
        evidence=(*how.evidence, *part_evidence(parts[:3])),
        where=how.places(*parts[:2]),
        predicted=how.with_batch_time(
            1 - share, f"{names} move to the GPU, where they take next to no time"
        ),
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.MEDIUM,
    )
