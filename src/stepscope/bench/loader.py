"""The grid of DataLoader settings: what was asked for, and which settings that makes."""

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from stepscope.bench.point import Point
from stepscope.bench.request import Request

DEFAULT_PREFETCH: Final = 2
_MOST_WORKERS: Final = 32
_GRID: Final = ("workers", "pin", "prefetch")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a DataLoader is made. `prefetch` is None without workers, where there is none."""

    batch: int
    workers: int = 0
    pin: bool = False
    prefetch: int | None = None

    @property
    def effort(self) -> tuple[int, bool, int]:
        """The less, the simpler: workers first."""
        return (self.workers, self.pin, self.prefetch or 0)


def ask(
    source: str,
    device: str,
    batches: tuple[int, ...],
    workers: tuple[int, ...],
    pins: tuple[bool, ...],
    prefetches: tuple[int, ...],
    rounds: int,
    timeout_s: float,
    **settings: Any,
) -> Request:
    """The request for a grid; `settings` are options of the child's, None where not given."""
    given = {name: value for name, value in settings.items() if value is not None}
    lists = dict(zip(_GRID, (workers, pins, prefetches), strict=True))
    return Request(
        models=(source,),
        modes=("load",),
        devices=(device,),
        batches=batches,
        settings=tuple(sorted({**given, **lists}.items())),
        rounds=rounds,
        timeout_s=timeout_s,
    )


def usual_workers(cores: float) -> tuple[int, ...]:
    """Numbers of workers worth trying: none, and up to as many as there are cores to use."""
    most = min(max(1, int(cores)), _MOST_WORKERS)
    return tuple(sorted({0, *(max(1, most // part) for part in (1, 2, 4, 8))}))


def grid(request: Request) -> tuple[dict[Setting, Point], list[str]]:
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
    found: dict[Setting, Point] = {}
    for batch in request.batches or ():
        settings = [Setting(batch)] + [
            Setting(batch, count, pin, ahead if count else None)
            for count, pin, ahead in product(workers, pins, prefetches)
        ]
        found |= {setting: _point(request, setting, asked) for setting in settings}
    return found, notes


def _point(request: Request, setting: Setting, asked: dict[str, Any]) -> Point:
    how: dict[str, Any] = {"workers": setting.workers, "pin": "on" if setting.pin else "off"}
    if setting.prefetch is not None:
        how["prefetch"] = setting.prefetch
    pairs = tuple(sorted({**asked, **how}.items()))
    return Point(request.models[0], "load", setting.batch, request.devices[0], (), pairs)
