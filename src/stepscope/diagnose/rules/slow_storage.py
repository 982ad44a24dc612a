"""Reading samples takes most of the time to make a batch."""

from collections.abc import Iterable
from dataclasses import replace

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._data import DataWait, data_wait, reading_parts, reading_share
from stepscope.diagnose.rules._loading import evidence, loading, places
from stepscope.diagnose.rules._text import at, line_of
from stepscope.diagnose.rules._workers import remedy
from stepscope.record.finding import Evidence, Finding


def _slow_storage(case: Case) -> Iterable[Finding]:
    """Where the step waits for data, and lines that read hold a good part of making it."""
    how = loading(case)
    if how is None or data_wait(case, how) is not DataWait.SLOW_STORAGE:
        return
    parts, share = reading_parts(case, how), reading_share(case, how)
    fix, predicted, kind = remedy(case, how)
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
            f"Each sample is read for {in_ms(each)} ms{at(line_of(parts[0]))}, and the step waits"
            f" {in_ms(how.wait_ms)} ms for its batch."
        ),
        advice=(
            "Keep samples in memory after the first epoch, or copy the data to a local disk or"
            " /dev/shm; pack many small files into one that is read in large pieces (LMDB, HDF5,"
            " a memory-mapped array). Workers hide what is left."
        ),
        share=how.share,
        evidence=(
            *evidence(how),
            Evidence("reading a sample", each, "ms"),
            *([Evidence("read from disks", read / 1e6, "MB")] if read is not None else ()),
        ),
        where=places(how, *parts[:2]),
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
