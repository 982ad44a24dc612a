"""The story of a result, or of several with a table of versions."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stepscope.report.story.blocks import (
    Block,
    Card,
    Chart,
    Column,
    Missing,
    Section,
    Story,
    Table,
    TimelineView,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import display_path, fix_argument, shown_program
from stepscope.results.load import LoadedResult

if TYPE_CHECKING:
    from stepscope.results.comparison import Comparison
    from stepscope.tune.document import Measured

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of a program. None: unknown. `gpu_use` is 0 to 1."""

    name: str
    step_ms: float | None
    samples_per_s: float | None
    gpu_use: float | None
    memory_bytes: float | None

    def speedup_to(self, first: "_Version") -> float | None:
        """The speedup over `first`: by samples if both are known, else by steps."""
        if self.samples_per_s and first.samples_per_s:
            return self.samples_per_s / first.samples_per_s
        return first.step_ms / self.step_ms if self.step_ms and first.step_ms else None


def _versions_of(subject: LoadedResult) -> Iterator[_Version]:
    """The version of a run or trace; each rung, point or size of a tune, bench or batch that
    ran."""
    document = subject.document
    if subject.kind == "run":
        yield _run_version(subject.name, document)
    elif subject.kind == "trace":
        parts = document["breakdown_ns"]
        use = 1 - parts["idle"] / parts["wall"] if parts["idle"] is not None else None
        yield _Version(subject.name, document["steps"]["mean_ms"], None, use, None)
    elif subject.kind == "tune":
        from stepscope.tune.document import Tune

        tune = subject.decoded(Tune)
        yield _measured_version("baseline", tune.baseline)
        for rung in tune.ladder:
            yield _measured_version(f"+ {rung.label}", rung)
    elif subject.kind == "batch":
        from stepscope.batch.document import Batch

        for row in subject.decoded(Batch).curve:
            if row.status == "ok":
                speed = row.step_ms, row.samples_per_s
                yield _Version(f"batch {row.batch:,}", *speed, None, row.memory_bytes)
    else:
        from stepscope.bench.results import LoaderPoint, PointStatus, bench_type

        for one in subject.decoded(bench_type(subject.document)).points:
            if one.status is PointStatus.OK:
                workers = f"{one.workers} workers" if isinstance(one, LoaderPoint) else None
                name = f"{one.model} {one.mode} on {one.device}, batch {one.batch:,}"
                rest = one.samples_per_s, one.gpu_busy, one.peak_memory_bytes
                yield _Version(f"{name}, {workers or one.variant}", one.mean_ms, *rest)


def _measured_version(name: str, one: "Measured") -> _Version:
    return _Version(name, one.step_ms, one.samples_per_s, one.gpu_busy, one.peak_memory_bytes)


def _run_version(name: str, document: Document) -> _Version:
    steps, gpu = document["steps"], document["gpu"] or {}
    fixes = [fix_argument(one) for one in document["fixes"] if one["state"] == "applied"]
    program = shown_program(document["run"])
    program = display_path(program, program)
    label = " ".join([program, *(f"+ {fix}" for fix in fixes), f"({name})"])
    peak = gpu.get("peak_allocated_bytes") or document["memory"]["peak_bytes"]
    rate, use = steps["samples_per_s"], gpu.get("busy_fraction")
    return _Version(label, steps["mean_ms"], rate, use, peak)


def versions_table(subjects: Sequence[LoadedResult]) -> Table:
    """Version × GPU use × throughput × speedup, for each run or for the variants of a tune or
    bench."""
    found = [version for subject in subjects for version in _versions_of(subject)]
    memory = Column.numeric("peak memory", "MiB", digits=4)
    return Table.of(
        "versions",
        "Versions",
        found,
        (Column("version"), lambda one: one.name),
        (Column.share("GPU use"), lambda one: one.gpu_use),
        (Column.numeric("throughput", "samples/s", digits=4), lambda one: one.samples_per_s),
        (Column.numeric("step", "ms"), lambda one: one.step_ms),
        (Column.numeric("speedup", "×"), lambda one: one.speedup_to(found[0])),
        (memory, lambda one: scaled(one.memory_bytes, 2.0**-20)),
    )


def story_of(subject: LoadedResult) -> Story:
    """The full story of a result."""
    build: Callable[[LoadedResult], Story]
    match subject.kind:
        case "run":
            from stepscope.report.story.run.story import story_of_run as build
        case "trace":
            from stepscope.report.story.trace.story import story_of_trace as build
        case "ranks":
            from stepscope.report.story.trace.story import story_of_ranks as build
        case "tune":
            from stepscope.report.story.tune.story import story_of_tune as build
        case "batch":
            from stepscope.report.story.batch import story_of_batch as build
        case _:
            from stepscope.report.story.bench.story import story_of_bench as build
    return build(subject)


def screen_of(subject: LoadedResult) -> Story:
    """The default screen of a result; for a run or trace, from its document alone."""
    if subject.kind == "run":
        from stepscope.report.story.run.story import run_screen

        return run_screen(subject)
    if subject.kind == "trace":
        from stepscope.report.story.trace.story import trace_screen

        return trace_screen(subject)
    return story_of(subject).short()


def story_of_several(
    subjects: Sequence[LoadedResult], compared: "Comparison | str | None"
) -> Story:
    """`compared`: the comparison of two, why there is none, or None for more than two."""
    stories = [story_of(subject) for subject in subjects]
    alike = Counter(story.title for story in stories)
    titles = [
        subject.name if alike[story.title] > 1 else story.title
        for story, subject in zip(stories, subjects, strict=True)
    ]
    head = [Section("versions", "Versions", (versions_table(subjects),), Weight.LEAD)]
    verdict = " · ".join(f"{story.title}: {story.verdict}" for story in stories)
    if isinstance(compared, str):
        missing = Missing("The two cannot be compared.", compared)
        head.append(Section("against", "Before and after", (missing,), Weight.LEAD))
    elif compared is not None:
        from stepscope.report.story.compare import comparison_story

        against = comparison_story(compared)
        verdict = against.verdict
        head += [_numbered(part, "against", against.title) for part in against.sections]
    parts = [
        _numbered(part, str(number), title)
        for number, (story, title) in enumerate(zip(stories, titles, strict=True), start=1)
        for part in story.sections
    ]
    return Story(
        title=" and ".join(titles),
        verdict=verdict,
        subtitle=" | ".join(story.subtitle for story in stories),
        sections=(*head, *parts),
        kind="comparison",
    )


def _numbered(section: Section, number: str, title: str) -> Section:
    """With unique ids, so that sections of several stories do not clash."""
    label, title = f"{number}-{section.id}", f"{section.title} — {title}"
    blocks = tuple(_block(block, number) for block in section.blocks)
    return replace(section, id=label, title=title, blocks=blocks)


def _block(block: Block, number: str) -> Block:
    if isinstance(block, Table | Chart):
        return replace(block, id=f"{number}-{block.id}")
    if isinstance(block, Card):
        return replace(block, id=f"{number}-{block.id}", at_ns=None, search="")
    if isinstance(block, TimelineView):
        what = "No timeline in a report of several results."
        return Missing(what, "A report of this result alone has it.")
    return block
