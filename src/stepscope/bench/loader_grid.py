"""`stepscope bench loader`: the grid of DataLoader settings, the best and the simplest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from stepscope.bench.grid import BenchRequest, Point
from stepscope.bench.speed import process_noise, speedup
from stepscope.bench.summary import by_point

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
        notes.append("pinning is left out: it is for copies to a GPU")
    if 0 in workers and len(prefetches) > 1:
        notes.append("prefetch is left out for 0 workers: nothing is fetched ahead there")
    if 0 not in workers or False not in pins:
        notes.append("the default loader (0 workers, not pinned) is measured too, to compare with")
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
NEAR: Final = 0.05  # as good as the best
_SPREAD: Final = 0.1  # between rounds, beyond which a setting is unstable


def setting_records(
    grid: Mapping[LoaderSetting, Point], records: Sequence[Document]
) -> list[Document]:
    """One record per setting, in the order of the grid; None where nothing was measured."""
    by_key: dict[str, list[Document]] = {}
    for record in records:
        by_key.setdefault(record["key"], []).append(record)
    return [
        _setting_record(setting, point, by_key.get(point.key(), []))
        for setting, point in grid.items()
    ]


def _setting_record(setting: LoaderSetting, point: Point, records: list[Document]) -> Document:
    good = [record["measured"] for record in records if record["status"] == "ok"]
    bad = next((record for record in records if record["status"] != "ok"), None)
    status = "missing" if not records else "ok" if bad is None else bad["status"]
    rates = [one["samples"] / one["elapsed_s"] for one in good]
    seconds, batches = _sum(good, "elapsed_s"), _sum(good, "calls")
    rate = _sum(good, "samples") / seconds if good else None
    spread = (max(rates) - min(rates)) / rate if rate and len(rates) > 1 else None
    sample_bytes = good[0]["dataset"]["sample_bytes"] if good else None
    return {
        "key": point.key(),
        "model": point.model,
        "mode": point.mode,
        "batch": setting.batch,
        "device": point.device,
        "fixes": [],
        "workers": setting.workers,
        "pin": setting.pin,
        "prefetch": setting.prefetch,
        "status": status,
        "why": bad["why"] if bad else None,
        "rounds": len(good),
        "samples_per_s": rate,
        "samples_per_s_low": min(rates, default=None),
        "samples_per_s_high": max(rates, default=None),
        "batches_per_s": batches / seconds if good else None,
        "mean_ms": seconds / batches * 1e3 if good else None,
        **{name: _mean(good, name) for name in ("p50_ms", "p95_ms", "p99_ms")},
        "first_batch_ms": _scaled(_mean(good, "first_s"), 1e3),
        "mb_per_s": rate * sample_bytes / 1e6 if rate and sample_bytes else None,
        "peak_memory_bytes": max((one["rss_bytes"] for one in good), default=None),
        "cores": _mean(good, "cores"),
        "mfu": None,
        "energy_j_per_sample": None,
        "unstable": spread is not None and spread > _SPREAD,
        "unstable_why": f"rounds differ by {spread:.0%}" if spread and spread > _SPREAD else None,
    }


def loaded_data(records: Sequence[Document]) -> Document:
    """What was loaded, and to where, as the first process that worked saw it."""
    good = [record["measured"] for record in records if record["status"] == "ok"]
    return {name: good[0][name] if good else None for name in ("dataset", "device_name")}


def choose_setting(points: Sequence[Document], records: Sequence[Document]) -> Document:
    """The best setting, the simplest that comes near it, the default at the same batch; by batch
    too. None where too little was measured."""
    batches = list(dict.fromkeys(point["batch"] for point in points))
    by_batch = [_choice([p for p in points if p["batch"] == batch], records) for batch in batches]
    whole = _choice(points, records)
    return {
        **whole,
        "by_batch": [{"batch": b, **c} for b, c in zip(batches, by_batch, strict=True)],
    }


def _choice(points: Sequence[Document], records: Sequence[Document]) -> Document:
    good = [point for point in points if point["status"] == "ok"]
    if not good:
        return dict.fromkeys(("best", "simplest", "default", "speedup", "line"))
    best = max(good, key=lambda point: point["samples_per_s"])
    near = [p for p in good if p["samples_per_s"] >= (1 - NEAR) * best["samples_per_s"]]
    simplest = min(
        near, key=lambda p: (setting_of(p).effort, p["batch"] != best["batch"], -p["samples_per_s"])
    )
    default = next(
        (
            p
            for p in good
            if p["batch"] == simplest["batch"] and setting_of(p) == LoaderSetting(p["batch"])
        ),
        None,
    )
    return {
        "best": best,
        "simplest": simplest,
        "default": default,
        "speedup": _gain(default, simplest, records) if default else None,
        "line": dataloader_line(setting_of(simplest)),
    }


def _gain(default: Document, chosen: Document, records: Sequence[Document]) -> Document | None:
    """How many times as fast as the default loader; None for the default itself."""
    if chosen["key"] == default["key"]:
        return None
    ours, theirs = ([r for r in records if r["key"] == p["key"]] for p in (default, chosen))
    return speedup(ours, theirs, "default", process_noise(by_point(records)))


def setting_of(point: Mapping[str, Any]) -> LoaderSetting:
    """The setting a record is of."""
    return LoaderSetting(*(point[name] for name in ("batch", "workers", "pin", "prefetch")))


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


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
