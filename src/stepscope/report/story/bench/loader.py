"""A grid of DataLoader settings: the one to use, throughput by workers, every setting."""

from collections.abc import Sequence
from textwrap import wrap

from stepscope.bench.loader_grid import DEFAULT_PREFETCH, LoaderSetting
from stepscope.bench.results import BenchResult, LoaderPoint, LoaderResult, PointStatus
from stepscope.record.units import format_bytes, format_number, format_speedup, plural
from stepscope.report.story.bench.grid import outcome
from stepscope.report.story.blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Command,
    Facts,
    Field,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import fix_options

_MIB = 2.0**-20
_MOST_FAILURES = 5
Points = Sequence[LoaderPoint]


def verdict(loader: LoaderResult) -> str:
    """The setting to use, and its gain."""
    chosen = loader.simplest
    if chosen is None:
        return "Nothing was measured."
    rate = f"{format_number(chosen.samples_per_s or 0.0)} samples/s"
    if loader.default is None:
        more = ""
    elif loader.speedup is None:
        more = ", the default loader"
    else:
        more = f", {format_speedup(loader.speedup.ratio)} the default"
    return f"Use {setting_name(chosen)}: {rate}{more}."


def sections(loader: LoaderResult, points: Points) -> list[Section]:
    """The code to write, throughput by workers, and the whole grid."""
    pairs = [("usable cores", f"{loader.usable_cores:g}")]
    if (found := loader.dataset) is not None:
        samples = [] if found.samples is None else [("samples", f"{found.samples:,}")]
        size = ("sample size", format_bytes(found.sample_bytes))
        pairs = [("dataset", found.kind), *samples, size, *pairs]
    brief = tuple(f"{name} {value}" for name, value in pairs)
    summary: list[Block] = [Facts(tuple(pairs), brief)]
    if loader.line:
        # The call over several lines, as a person would break it.
        head, _, rest = loader.line.partition("(")
        below = " " * (len(head) + 1)
        lines = wrap(rest, 70, initial_indent=f"{head}(", subsequent_indent=below)
        summary += [Code("\n".join(lines), "python"), _chosen(loader)]
    else:
        summary.append(Missing("No setting could be measured.", "The table below says why."))
    by_workers: list[Block] = [_workers_chart(points), _workers_table(points)]
    fine = (PointStatus.OK, PointStatus.MISSING)
    for point in [one for one in points if one.status not in fine][:_MOST_FAILURES]:
        by_workers.append(Paragraph(f"{setting_name(point)}: {outcome(point)}", tone=Tone.BAD))
    settings = Table.of(
        "settings",
        "",
        points,
        (Column.numeric("batch"), lambda one: one.batch),
        (Column.numeric("workers"), lambda one: one.workers),
        (Column("pinned"), lambda one: one.pin),
        (Column.numeric("prefetch"), lambda one: one.prefetch),
        *_COSTS,
        (Column("outcome"), outcome),
        shown=60,
    )
    return [
        Section("summary", "At a glance", tuple(summary), Weight.LEAD),
        Section("workers", "Samples/s by number of workers", tuple(by_workers), Weight.LEAD),
        Section("grid", "Every setting", (settings,)),
    ]


_COSTS: tuple[Field[LoaderPoint], ...] = (
    (Column.numeric("samples/s", digits=4), lambda one: one.samples_per_s),
    (Column.numeric("first batch", "ms"), lambda one: one.first_batch_ms),
    (Column.numeric("memory", "MiB", digits=4), lambda one: scaled(one.peak_memory_bytes, _MIB)),
    (Column.numeric("cores busy"), lambda one: one.cores),
)


def commands(loader: LoaderResult) -> tuple[Command, ...]:
    """Commands that try the setting on a program."""
    chosen = loader.simplest
    if chosen is None or not (chosen.workers or chosen.pin):
        return ()
    fixes = [f"workers={chosen.workers}"] if chosen.workers else []
    fixes += ["pin"] if chosen.pin else []
    command = f"stepscope run {fix_options(fixes)} train.py"
    return (Command(command, "the same for your program"),)


def setting_name(point: LoaderPoint | LoaderSetting) -> str:
    """`batch 32, 4 workers, pinned, prefetch 8`."""
    parts = [f"batch {point.batch:,}", plural(point.workers, "worker")]
    parts += ["pinned"] if point.pin else []
    if point.prefetch not in (None, DEFAULT_PREFETCH):
        parts.append(f"prefetch {point.prefetch}")
    return ", ".join(parts)


def about(bench: BenchResult, loader: LoaderResult) -> list[str]:
    """The device and cores it was measured with."""
    device = loader.device_name or (bench.points[0].device if bench.points else "")
    return [device, plural(int(loader.usable_cores), "usable core")]


def _chosen(loader: LoaderResult) -> Table:
    """The chosen settings beside the default."""
    columns = (Column(""), Column("setting"), *(column for column, _ in _COSTS))
    named = {"best": loader.best, "simplest": loader.simplest, "default": loader.default}
    rows: dict[str, tuple[Cell, ...]] = {}
    for name, point in named.items():
        if point is not None:
            costs = (value(point) for _, value in _COSTS)
            rows.setdefault(point.key, (name, setting_name(point), *costs))
    return Table("chosen", columns, tuple(rows.values()))


def _workers_chart(points: Points) -> Chart:
    """The best of pinning and prefetching at each number of workers, one line per batch."""
    series = []
    for batch in dict.fromkeys(point.batch for point in points):
        rates: dict[int, float] = {}
        for point in points:
            if point.batch == batch and point.samples_per_s is not None:
                rates[point.workers] = max(point.samples_per_s, rates.get(point.workers, 0.0))
        series.append(Series(f"batch {batch:,}", sorted(rates), [rates[n] for n in sorted(rates)]))
    title, y = "Samples per second by number of workers", "samples/s"
    note = "The best of pinning and prefetching at each."
    return Chart.lines("loader", title, *series, x="workers", y=y, note=note)


def _workers_table(points: Points) -> Table:
    """One row per batch, pinning and prefetch; one column per number of workers."""
    workers = sorted({point.workers for point in points})
    cells = {(one.batch, one.pin, one.prefetch, one.workers): one for one in points}
    ahead: list[int | None] = [*sorted({p.prefetch for p in points if p.prefetch is not None})]
    names = [plural(n, "worker") if n == workers[0] else f"{n}" for n in workers]
    heads = (Column.numeric("batch"), Column("pin"), Column.numeric("prefetch"))

    def rate(point: LoaderPoint | None) -> Cell:
        if point is None or point.status is PointStatus.MISSING:
            return None
        return point.samples_per_s if point.status is PointStatus.OK else point.status.label

    rows = []
    for batch, pin in sorted({(point.batch, point.pin) for point in points}):
        for prefetch in ahead or [None]:
            # Without workers nothing is prefetched: those numbers go into the first row.
            first = prefetch in (None, *ahead[:1])
            row = [
                cells.get((batch, pin, prefetch if n else None, n)) if n or first else None
                for n in workers
            ]
            if any(row):
                rows.append((batch, "on" if pin else "off", prefetch, *map(rate, row)))
    return Table("by-workers", (*heads, *map(Column.numeric, names)), tuple(rows))
