"""Samples are so small that fetching them one by one is what takes the time."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._data import DataWait, data_wait
from stepscope.diagnose.rules._loading import evidence, loading, places
from stepscope.diagnose.rules._workers import cheaper
from stepscope.record.finding import Evidence, Finding

_AT_ONCE = 0.15  # of the time one by one: 0.07 to 0.27 for samples of 16 to 512 bytes


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
            *evidence(how),
            Evidence("a sample", 1e3 * source["ms_per_sample"], "µs"),
            Evidence("collating", 100 * collate, "% of making a batch"),
        ),
        where=places(how, source),
        predicted=cheaper(
            case, how, _AT_ONCE, "a batch fetched at once takes about a seventh (a rule of thumb)"
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
