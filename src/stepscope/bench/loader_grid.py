"""`stepscope bench loader`: the grid of DataLoader settings, the best and the simplest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from stepscope.bench.grid import BenchRequest, Point
from stepscope.bench.results import (
    BatchChoice,
    LoaderPoint,
    LoaderResult,
    PointStatus,
    Speedup,
)
from stepscope.bench.speed import process_noise, speedup
from stepscope.bench.summary import by_point
from stepscope.stats.knee import NEAR_BEST

_DEFAULT_PREFETCH: Final = 2
_MOST_WORKERS: Final = 32
_GRID: Final = ("workers", "pin", "prefetch")


@dataclass(frozen=True, slots=True)
class LoaderSetting:
    """How a DataLoader is made. `prefetch` is None without workers, where there is none."""

    batch: int
    workers: int = 0
    pin: bool = False
    prefetch: int | None = None

    @property
    def effort(self) -> tuple[int, bool, int]:
        """The less, the simpler: workers first."""
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
    """The request for a grid; `settings` are options of the child's, None where not given."""
    given = {name: value for name, value in settings.items() if value is not None}
    lists = dict(zip(_GRID, (workers, pins, prefetches), strict=True))
    return BenchRequest(
        models=(source,),
        modes=("load",),
        devices=(device,),
        batches=batches,
        settings=tuple(sorted({**given, **lists}.items())),
        rounds=rounds,
        timeout_s=timeout_s,
    )


def worker_counts(cores: float) -> tuple[int, ...]:
    """Numbers of workers worth trying: none, and up to as many as there are cores to use."""
    most = min(max(1, int(cores)), _MOST_WORKERS)
    return tuple(sorted({0, *(max(1, most // part) for part in (1, 2, 4, 8))}))


def setting_points(request: BenchRequest) -> tuple[dict[LoaderSetting, Point], list[str]]:
    """(the settings in order, each as a process measures it; what was left out or added and why).

    The loader as it comes (no workers, not pinned) is always there, to compare with.
    """
    asked = dict(request.settings)
    workers, pins, prefetches = (asked.pop(name) for name in _GRID)
    notes = []
    if request.devices == ("cpu",) and True in pins:
        pins = (False,)
        notes.append("pinning left out: it only helps copies to a GPU")
    if 0 in workers and len(prefetches) > 1:
        notes.append("prefetch left out with 0 workers: nothing is fetched ahead")
    if 0 not in workers or False not in pins:
        notes.append("the default loader (0 workers, not pinned) is measured as the baseline")
    found: dict[LoaderSetting, Point] = {}
    for batch in request.batches or ():
        settings = [LoaderSetting(batch)] + [
            LoaderSetting(batch, count, pin, ahead if count else None)
            for count, pin, ahead in product(workers, pins, prefetches)
        ]
        found |= {setting: _setting_point(request, setting, asked) for setting in settings}
    return found, notes


def _setting_point(request: BenchRequest, setting: LoaderSetting, asked: dict[str, Any]) -> Point:
    how: dict[str, Any] = {"workers": setting.workers, "pin": "on" if setting.pin else "off"}
    if setting.prefetch is not None:
        how["prefetch"] = setting.prefetch
    pairs = tuple(sorted({**asked, **how}.items()))
    return Point(request.models[0], "load", setting.batch, request.devices[0], (), pairs)


Document = dict[str, Any]
_SPREAD: Final = 0.1  # between rounds, beyond which a setting is unstable


def setting_points_measured(
    grid: Mapping[LoaderSetting, Point], records: Sequence[Document]
) -> tuple[LoaderPoint, ...]:
    """One per setting, in the order of the grid."""
    by_key: dict[str, list[Document]] = {}
    for record in records:
        by_key.setdefault(record["key"], []).append(record)
    return tuple(
        _measured_setting(setting, point, by_key.get(point.key(), []))
        for setting, point in grid.items()
    )


def _measured_setting(setting: LoaderSetting, point: Point, records: list[Document]) -> LoaderPoint:
    good = [record["measured"] for record in records if record["status"] == PointStatus.OK]
    bad = next((record for record in records if record["status"] != PointStatus.OK), None)
    status = PointStatus.OK if bad is None else PointStatus(bad["status"])
    rates = [one["samples"] / one["elapsed_s"] for one in good]
    seconds, batches = _sum(good, "elapsed_s"), _sum(good, "calls")
    rate = _sum(good, "samples") / seconds if good else None
    spread = (max(rates) - min(rates)) / rate if rate and len(rates) > 1 else 0.0
    unstable = spread > _SPREAD
    sample_bytes = good[0]["dataset"]["sample_bytes"] if good else None
    first_s = _mean(good, "first_s")
    return LoaderPoint(
        key=point.key(),
        model=point.model,
        mode=point.mode,
        batch=setting.batch,
        device=point.device,
        workers=setting.workers,
        pin=setting.pin,
        prefetch=setting.prefetch,
        status=status if records else PointStatus.MISSING,
        why=bad["why"] if bad else None,
        rounds=len(good),
        samples_per_s=rate,
        samples_per_s_low=min(rates, default=None),
        samples_per_s_high=max(rates, default=None),
        batches_per_s=batches / seconds if good else None,
        mean_ms=seconds / batches * 1e3 if good else None,
        p50_ms=_mean(good, "p50_ms"),
        p95_ms=_mean(good, "p95_ms"),
        p99_ms=_mean(good, "p99_ms"),
        first_batch_ms=None if first_s is None else first_s * 1e3,
        mb_per_s=rate * sample_bytes / 1e6 if rate and sample_bytes else None,
        peak_memory_bytes=max((one["rss_bytes"] for one in good), default=None),
        cores=_mean(good, "cores"),
        unstable=unstable,
        unstable_why=f"rounds differ by {spread:.0%}" if unstable else None,
    )


def loader_result(
    points: Sequence[LoaderPoint], records: Sequence[Document], usable_cores: float
) -> LoaderResult:
    """The choice over all batches and at each; what was loaded, as the first process saw it."""
    good = [record["measured"] for record in records if record["status"] == PointStatus.OK]
    about = {name: good[0][name] if good else None for name in ("dataset", "device_name")}
    batches = list(dict.fromkeys(point.batch for point in points))
    by_batch = tuple(
        BatchChoice(
            batch=batch, **_choice([point for point in points if point.batch == batch], records)
        )
        for batch in batches
    )
    return LoaderResult(
        **about, usable_cores=usable_cores, by_batch=by_batch, **_choice(points, records)
    )


def _choice(points: Sequence[LoaderPoint], records: Sequence[Document]) -> dict[str, Any]:
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
    return {
        "best": best,
        "simplest": simplest,
        "default": default,
        "speedup": _gain(default, simplest, records) if default else None,
        "line": dataloader_line(setting_of(simplest)),
    }


def _gain(default: LoaderPoint, chosen: LoaderPoint, records: Sequence[Document]) -> Speedup | None:
    """How many times as fast as the default loader; None for the default itself."""
    if chosen.key == default.key:
        return None
    ours, theirs = ([r for r in records if r["key"] == p.key] for p in (default, chosen))
    return speedup(ours, theirs, "default", process_noise(by_point(records)))


def setting_of(point: LoaderPoint) -> LoaderSetting:
    """The setting a point is of."""
    return LoaderSetting(point.batch, point.workers, point.pin, point.prefetch)


def dataloader_line(setting: LoaderSetting) -> str:
    """How to write a setting."""
    words = ["dataset", f"batch_size={setting.batch}", "shuffle=True"]
    if setting.workers:
        words.append(f"num_workers={setting.workers}")
    words += ["pin_memory=True"] if setting.pin else []
    if setting.prefetch not in (None, _DEFAULT_PREFETCH):
        words.append(f"prefetch_factor={setting.prefetch}")
    words += ["persistent_workers=True"] if setting.workers else []
    return f"DataLoader({', '.join(words)})"


def _sum(records: Sequence[Document], name: str) -> float:
    return float(sum(record[name] for record in records))


def _mean(records: Sequence[Document], name: str) -> float | None:
    return _sum(records, name) / len(records) if records else None
