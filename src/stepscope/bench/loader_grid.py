"""`stepscope bench loader`: the grid of DataLoader settings, the best and the simplest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import fsum
from typing import Any, Final

from stepscope.bench.grid import BenchRequest, Point
from stepscope.bench.record import Records, by_point, results_of
from stepscope.bench.results import BatchChoice, LoaderPoint, LoaderResult, PointStatus
from stepscope.bench.summary import max_known, mean_known, process_noise, speedup
from stepscope.stats.series import NEAR_BEST
from stepscope.workloads.measure.record import LoadMeasured

DEFAULT_PREFETCH: Final = 2
_MOST_WORKERS: Final = 32
_GRID: Final = ("workers", "pin", "prefetch")


@dataclass(frozen=True, slots=True)
class LoaderSetting:
    """A DataLoader's settings; `prefetch` is None without workers."""

    batch: int
    workers: int = 0
    pin: bool = False
    prefetch: int | None = None

    @property
    def effort(self) -> tuple[int, bool, int]:
        """A sort key, simplest first: fewer workers above all."""
        return (self.workers, self.pin, self.prefetch or 0)


def loader_request(
    source: str,
    device: str,
    batches: tuple[int, ...],
    workers: tuple[int, ...],
    pins: tuple[bool, ...],
    prefetches: tuple[int, ...],
    rounds: int,
    timeout_s: float,
    **settings: Any,
) -> BenchRequest:
    """The request for a grid; `settings` are options of the measuring program, None: not given."""
    given = {name: value for name, value in settings.items() if value is not None}
    lists = dict(zip(_GRID, map(sorted, (workers, pins, prefetches)), strict=True))
    return BenchRequest(
        models=(source,),
        modes=("load",),
        devices=(device,),
        batches=batches,
        settings=dict(sorted({**given, **lists}.items())),
        rounds=rounds,
        timeout_s=timeout_s,
    )


def worker_counts(cores: float) -> tuple[int, ...]:
    """Worker counts worth trying, from 0 to the usable cores."""
    most = min(max(1, int(cores)), _MOST_WORKERS)
    return tuple(sorted({0, *(max(1, most // part) for part in (1, 2, 4, 8))}))


def setting_points(request: BenchRequest) -> tuple[dict[LoaderSetting, Point], list[str]]:
    """(each setting with the point that measures it; notes on what was left out or added). The
    default loader (no workers, not pinned) is always included for comparison."""
    asked: dict[str, Any] = dict(request.settings)
    workers, pins, prefetches = (asked.pop(name) for name in _GRID)
    notes = []
    if request.devices == ("cpu",) and True in pins:
        pins = [False]
        notes.append("pinning left out: it only helps copies to a GPU")
    if 0 in workers and len(prefetches) > 1:
        notes.append("prefetch left out with 0 workers: nothing is fetched ahead")
    if 0 not in workers or False not in pins:
        notes.append("the default loader (0 workers, not pinned) is measured as the baseline")
    found: dict[LoaderSetting, Point] = {}
    for batch in request.batches or ():
        for count, pin, ahead in ((0, False, None), *product(workers, pins, prefetches)):
            how = {**asked, "workers": count, "pin": "on" if pin else "off"}
            if count:
                how["prefetch"] = ahead
            found[LoaderSetting(batch, count, pin, ahead if count else None)] = Point(
                request.models[0], "load", batch, request.devices[0], (), dict(sorted(how.items()))
            )
    return found, notes


_SPREAD: Final = 0.1  # between rounds: a setting that exceeds it is unstable


def measured_settings(
    grid: Mapping[LoaderSetting, Point], records: Records
) -> tuple[LoaderPoint, ...]:
    """The measurements of each setting, in the order of the grid."""
    by_key = {several[0].key: several for several in by_point(records)}
    return tuple(
        _measured_setting(setting, point, by_key.get(point.key(), []))
        for setting, point in grid.items()
    )


def _measured_setting(setting: LoaderSetting, point: Point, records: Records) -> LoaderPoint:
    good = _loaded(records)
    bad = next((record for record in records if record.status is not PointStatus.OK), None)
    status = bad.status if bad else PointStatus.OK if records else PointStatus.MISSING
    rates = [one.samples / one.elapsed_s for one in good]
    seconds, batches = fsum(one.elapsed_s for one in good), sum(one.calls for one in good)
    rate = sum(one.samples for one in good) / seconds if good else None
    spread = (max(rates) - min(rates)) / rate if rate and len(rates) > 1 else 0.0
    unstable = spread > _SPREAD
    sample_bytes = good[0].dataset.sample_bytes if good and good[0].dataset else None
    first_s = mean_known(one.first_s for one in good)
    return LoaderPoint(
        key=point.key(),
        model=point.model,
        mode=point.mode,
        batch=setting.batch,
        device=point.device,
        workers=setting.workers,
        pin=setting.pin,
        prefetch=setting.prefetch,
        status=status,
        why=bad.why if bad else None,
        rounds=len(good),
        samples_per_s=rate,
        samples_per_s_low=min(rates, default=None),
        samples_per_s_high=max(rates, default=None),
        batches_per_s=batches / seconds if good else None,
        mean_ms=seconds / batches * 1e3 if good else None,
        p50_ms=mean_known(one.p50_ms for one in good),
        p95_ms=mean_known(one.p95_ms for one in good),
        p99_ms=mean_known(one.p99_ms for one in good),
        first_batch_ms=None if first_s is None else first_s * 1e3,
        mb_per_s=rate * sample_bytes / 1e6 if rate and sample_bytes else None,
        peak_memory_bytes=max_known(one.rss_bytes for one in good),
        cores=mean_known(one.cores for one in good),
        unstable=unstable,
        unstable_why=f"rounds differ by {spread:.0%}" if unstable else None,
    )


def _loaded(records: Records) -> list[LoadMeasured]:
    return [one for one in results_of(records) if isinstance(one, LoadMeasured)]


def loader_result(
    points: Sequence[LoaderPoint], records: Records, usable_cores: float
) -> LoaderResult:
    """The best choices over all batches and at each, and the dataset as the first process saw
    it."""
    first = next(iter(_loaded(records)), LoadMeasured())
    by_batch: dict[int, list[LoaderPoint]] = {}
    for point in points:
        by_batch.setdefault(point.batch, []).append(point)
    return LoaderResult(
        dataset=first.dataset,
        device_name=first.device_name,
        usable_cores=usable_cores,
        by_batch=tuple(BatchChoice(batch=k, **_choice(v, records)) for k, v in by_batch.items()),
        **_choice(points, records),
    )


def _choice(points: Sequence[LoaderPoint], records: Records) -> dict[str, Any]:
    """The fields of a LoaderChoice."""
    good = [(point.samples_per_s, point) for point in points if point.status is PointStatus.OK]
    rated = [(rate, point) for rate, point in good if rate is not None]
    if not rated:
        return {}
    top, best = max(rated, key=lambda one: one[0])
    near = [(rate, point) for rate, point in rated if rate >= (1 - NEAR_BEST) * top]
    _, simplest = min(
        near, key=lambda one: (setting_of(one[1]).effort, one[1].batch != best.batch, -one[0])
    )
    usual = LoaderSetting(simplest.batch)
    default = next((point for _, point in rated if setting_of(point) == usual), None)
    gain = None
    if default is not None and default.key != simplest.key:
        ours, theirs = ([r for r in records if r.key == p.key] for p in (default, simplest))
        gain = speedup(ours, theirs, "default", process_noise(by_point(records)))
    return {
        "best": best,
        "simplest": simplest,
        "default": default,
        "speedup": gain,
        "line": dataloader_line(setting_of(simplest)),
    }


def setting_of(point: LoaderPoint) -> LoaderSetting:
    return LoaderSetting(point.batch, point.workers, point.pin, point.prefetch)


def dataloader_line(setting: LoaderSetting) -> str:
    """The DataLoader call for a setting."""
    words = ["dataset", f"batch_size={setting.batch}", "shuffle=True"]
    if setting.workers:
        words.append(f"num_workers={setting.workers}")
    words += ["pin_memory=True"] if setting.pin else []
    if setting.prefetch not in (None, DEFAULT_PREFETCH):
        words.append(f"prefetch_factor={setting.prefetch}")
    words += ["persistent_workers=True"] if setting.workers else []
    return f"DataLoader({', '.join(words)})"
