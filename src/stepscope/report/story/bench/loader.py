"""A grid of DataLoader settings: the one to use, throughput by workers, every setting."""

from collections.abc import Sequence
from textwrap import wrap

from stepscope.bench.results import BenchResult, LoaderPoint, LoaderResult, PointStatus
from stepscope.record.units import format_bytes, format_number, format_speedup, plural
from stepscope.report.story.bench.grid import outcome
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Command,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    number_column,
)

_MIB = 2.0**-20
_DEFAULT_PREFETCH = 2
_MOST_FAILURES = 5
Points = Sequence[LoaderPoint]


def loader_verdict(loader: LoaderResult) -> str:
    """The setting to use, and what it is worth."""
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


def loader_sections(loader: LoaderResult, points: Points) -> list[Section]:
    """What to write, throughput by workers, and the whole grid."""
    pairs = _dataset(loader)
    brief = tuple(f"{name} {value}" for name, value in pairs)
    summary: list[Block] = [Facts(pairs, brief)]
    if loader.line:
        summary += [Code(_folded(loader.line), "python"), _chosen(loader)]
    else:
        summary.append(Missing("No setting could be measured.", "The table below says why."))
    by_workers: list[Block] = [_workers_chart(points), _workers_table(points)]
    failed = [
        point for point in points if point.status not in (PointStatus.OK, PointStatus.MISSING)
    ]
    by_workers += [
        Paragraph(f"{setting_name(point)}: {outcome(point)}", tone=Tone.BAD)
        for point in failed[:_MOST_FAILURES]
    ]
    return [
        Section("summary", "At a glance", tuple(summary), Weight.LEAD),
        Section("workers", "Samples/s by number of workers", tuple(by_workers), Weight.LEAD),
        Section("grid", "Every setting", (_settings_table(points),)),
    ]


def loader_commands(loader: LoaderResult) -> tuple[Command, ...]:
    """The setting, tried on a program."""
    chosen = loader.simplest
    if chosen is None or not (chosen.workers or chosen.pin):
        return ()
    fixes = [f"--fix workers={chosen.workers}"] if chosen.workers else []
    fixes += ["--fix pin"] if chosen.pin else []
    return (Command(f"stepscope run {' '.join(fixes)} train.py", "the same for your program"),)


def setting_name(point: LoaderPoint) -> str:
    """`batch 32, 4 workers, pinned, prefetch 8`."""
    parts = [f"batch {point.batch:,}", plural(point.workers, "worker")]
    parts += ["pinned"] if point.pin else []
    if point.prefetch not in (None, _DEFAULT_PREFETCH):
        parts.append(f"prefetch {point.prefetch}")
    return ", ".join(parts)


def loader_about(bench: BenchResult, loader: LoaderResult) -> list[str]:
    """Where it was loaded to."""
    device = loader.device_name or (bench.points[0].device if bench.points else "")
    return [device, plural(int(loader.usable_cores), "usable core")]


def _folded(call: str) -> str:
    """The call over several lines, as one would break it."""
    head, _, rest = call.partition("(")
    return "\n".join(
        wrap(rest, 70, initial_indent=f"{head}(", subsequent_indent=" " * (len(head) + 1))
    )


def _dataset(loader: LoaderResult) -> tuple[tuple[str, str], ...]:
    found, pairs = loader.dataset, []
    if found is not None:
        pairs = [("dataset", found.kind), ("sample size", format_bytes(found.sample_bytes))]
        if found.samples is not None:
            pairs.insert(1, ("samples", f"{found.samples:,}"))
    return (*pairs, ("usable cores", f"{loader.usable_cores:g}"))


def _chosen(loader: LoaderResult) -> Table:
    """What the settings cost, beside the default."""
    columns = (
        Column(""), Column("setting"), Column("samples/s", number=True, digits=4),
        number_column("first batch", "ms"), Column("memory", "MiB", number=True, digits=4),
        number_column("cores busy"),
    )  # fmt: skip
    rows: dict[str, tuple[Cell, ...]] = {}
    for name, point in (
        ("best", loader.best),
        ("simplest", loader.simplest),
        ("default", loader.default),
    ):
        if point is not None:
            rows.setdefault(point.key, (name, setting_name(point), *_costs(point)))
    return Table("chosen", columns, tuple(rows.values()))


def _costs(point: LoaderPoint) -> tuple[Cell, ...]:
    memory = point.peak_memory_bytes
    mib = None if memory is None else memory * _MIB
    return point.samples_per_s, point.first_batch_ms, mib, point.cores


def _workers_chart(points: Points) -> Chart:
    """The best of pinning and prefetching at each number of workers, a line per batch."""
    series = []
    for batch in dict.fromkeys(point.batch for point in points):
        rates: dict[int, float] = {}
        for point in points:
            if point.batch == batch and point.samples_per_s is not None:
                rates[point.workers] = max(point.samples_per_s, rates.get(point.workers, 0.0))
        series.append(Series(f"batch {batch:,}", sorted(rates), [rates[n] for n in sorted(rates)]))
    return Chart(
        "loader", "line", "Samples per second by number of workers", tuple(series),
        Axis("workers"), Axis("samples/s"), note="The best of pinning and prefetching at each.",
    )  # fmt: skip


def _workers_table(points: Points) -> Table:
    """A row per batch, pinning and prefetch, a column per number of workers."""
    workers = sorted({point.workers for point in points})
    cells = {(one.batch, one.pin, one.prefetch, one.workers): one for one in points}
    ahead: list[int | None] = [*sorted({p.prefetch for p in points if p.prefetch is not None})]
    columns = (
        Column("batch", number=True), Column("pin"), Column("prefetch", number=True),
        *(Column(plural(n, "worker") if n == workers[0] else f"{n}", number=True) for n in workers),
    )  # fmt: skip
    rows = []
    for batch, pin in sorted({(point.batch, point.pin) for point in points}):
        for prefetch in ahead or [None]:
            # Without workers nothing is prefetched: those numbers stand in the first row.
            first = prefetch in (None, *ahead[:1])
            row = [
                cells.get((batch, pin, prefetch if n else None, n)) if n or first else None
                for n in workers
            ]
            if any(row):
                rows.append((batch, "on" if pin else "off", prefetch, *map(_rate, row)))
    return Table("by-workers", columns, tuple(rows))


def _rate(point: LoaderPoint | None) -> Cell:
    if point is None or point.status is PointStatus.MISSING:
        return None
    return point.samples_per_s if point.status is PointStatus.OK else point.status.label


def _settings_table(points: Points) -> Table:
    columns = (
        Column("batch", number=True), Column("workers", number=True), Column("pinned"),
        Column("prefetch", number=True), Column("samples/s", number=True, digits=4),
        Column("first batch", "ms", number=True), Column("memory", "MiB", number=True, digits=4),
        Column("cores busy", number=True), Column("outcome"),
    )  # fmt: skip
    rows = tuple(
        (one.batch, one.workers, one.pin, one.prefetch, *_costs(one), outcome(one))
        for one in points
    )
    return Table("settings", columns, rows, shown=60)
