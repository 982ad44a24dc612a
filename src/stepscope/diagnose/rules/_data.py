"""Why a step waits for data: one cause, so that one rule reports it."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from stepscope.diagnose.case import Case
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._loading import Loading
from stepscope.diagnose.rules._run import spent, steps, times

_READS = re.compile(
    r"\bopen\(|\bsleep\(|\b\w*load\w*\(|\bread\w*\(|\.read\w*\(|imread|urlopen|requests\.|h5py|"
    r"zarr|lmdb|sqlite|memmap|from_file|File\(|boto|fsspec|download"
)
_CHANCE = re.compile(r"(?i)rand|jitter|augment|mixup|cutmix|noise|erasing|dropout|shuffle|sample\(")
_TINY_MS, _SMALL_MS = 0.05, 0.1  # a sample made faster than that is mostly overhead,
_MANY = 256  # where a batch has so many: fewer are fast for another reason
_MOSTLY = 0.4


class DataWait(Enum):
    """Why a step waits for data; each has its rule."""

    RESTARTED_WORKERS = "most steps start new workers"
    TINY_SAMPLES = "samples are fetched one by one"
    SLOW_STORAGE = "samples are read slowly"
    LATE_BATCHES = "workers keep up, but single batches are late"
    FEW_WORKERS = "there are cores for more workers"
    SLOW_SAMPLES = "samples are expensive to make"


def data_wait(case: Case, how: Loading | None) -> DataWait | None:
    """Why the step waits for data; None where the wait is too short to matter."""
    if how is None or how.share < LEAST:
        return None
    if how.workers and restarted(case):
        return DataWait.RESTARTED_WORKERS
    if is_tiny(how):
        return DataWait.TINY_SAMPLES
    if how.limits and reading_share(case, how) >= _MOSTLY:
        return DataWait.SLOW_STORAGE
    if not how.limits:
        return None if starts_matter(case) else DataWait.LATE_BATCHES
    return DataWait.FEW_WORKERS if 0 < how.workers < how.most else DataWait.SLOW_SAMPLES


def restarted(case: Case) -> bool:
    """Whether most steps make a new iterator."""
    return times(case, "epoch_start") > steps(case) / 2 > 0


def starts_matter(case: Case) -> bool:
    """Whether the starts of epochs are a part of the run worth speaking of."""
    starts = spent(case, "epoch_start")
    return starts is not None and starts.share >= LEAST


def is_tiny(how: Loading) -> bool:
    """Whether samples are so small that fetching them one by one is what takes the time."""
    each = how.source.get("ms_per_sample")
    if each is None or how.source["ms_per_batch"] < _MANY * each:
        return False
    return bool(each <= _TINY_MS or (each <= _SMALL_MS and how.source["collate_share"] >= 0.5))


def reading_parts(case: Case, how: Loading) -> list[Mapping[str, Any]]:
    """The dataset's lines that read, by their source."""
    return [
        part for part in how.parts if part["what"] == "line" and _READS.search(text(case, part))
    ]


def reading_share(case: Case, how: Loading) -> float:
    """What part of making a batch is reading."""
    return float(sum(part["share"] for part in reading_parts(case, how)))


def by_chance(case: Case, how: Loading) -> bool:
    """Whether samples depend on random draws, by the names and lines of their parts."""
    return any(
        _CHANCE.search(part["name"]) or _CHANCE.search(text(case, part)) for part in how.parts
    )


def epochs(case: Case) -> int:
    """How often the data was gone through, at least 1."""
    return max(1, times(case, "epoch_start"))


def text(case: Case, part: Mapping[str, Any]) -> str:
    """A part's source line; empty where it is not known."""
    file, line = part.get("file"), part.get("line")
    return (case.source(file, line) or "") if file and line else ""
