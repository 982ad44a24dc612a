"""The story of a benchmark: a grid of points, a study, a loader grid or a table of kernels."""

from collections import Counter
from collections.abc import Iterator

from stepscope.bench.results import (
    BenchResult,
    CpuGpuStudy,
    LoaderPoint,
    MemoryStudy,
    PointSummary,
    bench_type,
)
from stepscope.record.units import capitalized, plural
from stepscope.report.story.bench import cpu_gpu, grid, kernels, loader, memory
from stepscope.report.story.blocks import (
    Block,
    Code,
    Command,
    Facts,
    Missing,
    Paragraph,
    Section,
    Story,
    Tone,
    Weight,
)
from stepscope.report.story.phrases import joined, minute_text, torch_text
from stepscope.report.story.summary import machine_facts
from stepscope.results.load import LoadedResult

_IMPOSSIBLE = 1.05  # of a ceiling
_MOST_UNSTABLE = 4


def story_of_bench(subject: LoadedResult) -> Story:
    """The story of any benchmark, in the same frame."""
    return bench_story(subject.decoded(bench_type(subject.document)))


def bench_story(bench: BenchResult) -> Story:
    """The report of a benchmark, and its screen."""
    title, about, verdict, sections, commands = _parts(bench)
    rounds = max((point.rounds for point in bench.points), default=0)
    # How far to trust it: a remark that holds for several points is made once.
    notes = tuple(Paragraph(text, tone=Tone.WARN) for text in dict.fromkeys(_remarks(bench)))
    if notes:
        sections = [*sections, Section("quality", "How far to trust this", notes, Weight.LEAD)]
    return Story(
        title=title,
        verdict=verdict,
        subtitle=joined(
            *about,
            torch_text((bench.machine.get("torch") or {}).get("version")),
            plural(rounds, "process", "processes") + " each" if rounds else None,
            minute_text(bench.started),
        ),
        sections=(*sections, _environment(bench)),
        kind="bench",
        next=commands,
    )


_Parts = tuple[str, list[str], str, list[Section], tuple[Command, ...]]
"""Title, devices, verdict, sections, commands to run next."""


def _parts(bench: BenchResult) -> _Parts:
    match bench.study:
        case CpuGpuStudy() as study:
            title = f"{study.model}: CPU against GPU, batch {study.batch:,}"
            title += f", with {','.join(study.fixes)}" if study.fixes else ""
            about = [study.cpu.device_name or "CPU", study.gpu.device_name or "GPU"]
            faster = f"bench {study.model} --device cuda --ablate amp=bf16,compile=default"
            answers, sections = cpu_gpu.answers(study), cpu_gpu.sections(study)
            return _study(title, about, answers, sections, Command(f"stepscope {faster}"))
        case MemoryStudy() as study:
            title = f"{study.model}: memory, batch {study.batch:,}"
            about = [study.device_name or study.device]
            answers, sections = memory.answers(study), memory.sections(study)
            return _study(title, about, answers, sections, memory.command(study))
    if (found := bench.kernels) is not None:
        title = f"kernels of {found.model}, {found.mode}, batch {found.batch:,}"
        title += f", with {','.join(found.fixes)}" if found.fixes else ""
        about = _device_names(bench, [found.device])
        commands: tuple[Command, ...] = (kernels.command(found),)
        return title, about, kernels.verdict(found), kernels.sections(found), commands
    if (tried := bench.loader) is not None:
        points = [point for point in bench.points if isinstance(point, LoaderPoint)]
        title = f"DataLoader of {points[0].model}" if points else "DataLoader"
        about, verdict = loader.about(bench, tried), loader.verdict(tried)
        return title, about, verdict, loader.sections(tried, points), loader.commands(tried)
    if not bench.points:
        missing = Missing("No point was measured.", "stepscope bench resnet18 measures one.")
        section = Section("points", "Points", (missing,))
        return "benchmark", [], "Nothing was measured.", [section], ()
    models = list(dict.fromkeys(point.model for point in bench.points))
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    about = _device_names(bench, [point.device for point in bench.points])
    title = f"bench of {', '.join(models[:3])}{more}"
    return title, about, grid.verdict(bench), grid.sections(bench), (grid.next_command(bench),)


def _study(
    title: str, about: list[str], answers: Iterator[str], sections: list[Section], command: Command
) -> _Parts:
    """A study's story: the first answer is the verdict, the others come next."""
    verdict, *rest = list(answers) or ["Nothing was measured."]
    if rest:
        summary = Section("summary", "At a glance", tuple(map(Paragraph, rest)), Weight.LEAD)
        sections = [summary, *sections]
    return title, about, verdict, sections, (command,)


def _device_names(bench: BenchResult, devices: list[str]) -> list[str]:
    """The devices' product names."""
    gpus = [gpu.get("name") for gpu in bench.machine.get("gpus") or ()]
    known = {
        "cpu": (bench.machine.get("cpu") or {}).get("model") or "CPU",
        "cuda": gpus[0] if gpus and gpus[0] else "CUDA",
    }
    return [str(known.get(device, device)) for device in dict.fromkeys(devices)]


def _remarks(bench: BenchResult) -> Iterator[str]:
    points = bench.points
    unstable = [point for point in points if point.unstable]
    for point in unstable[:_MOST_UNSTABLE]:
        why = point.unstable_why or "its times did not settle"
        yield f"{_point_name(point)} is unstable: {why}."
    if left := len(unstable[_MOST_UNSTABLE:]):
        yield f"{left} more points are unstable."
    for point in points:
        for fix in point.not_applied:
            yield f"{_point_name(point)}: {fix.name} not applied: {fix.why}."
    counts = Counter(note for point in points for note in point.notes)
    for note, count in counts.items():
        of = f" ({count} of {len(points)} points)" if len(points) > 1 else ""
        yield f"{capitalized(note)}{of}."
    if (floor := bench.noise_floor) is not None:
        share = f"{floor:.1%}" if floor < 1 else "above 100%"
        yield f"Noise floor {share}: smaller differences are noise."
    if any((point.mfu or 0.0) > _IMPOSSIBLE for point in points):
        yield (
            "MFU above 100%: the ceilings were measured on a busy machine."
            " stepscope doctor --refresh measures them again."
        )
    notes = [*bench.notes, *(bench.study.notes if bench.study else ())]
    yield from (f"{capitalized(note)}." for note in notes)


def _point_name(point: PointSummary) -> str:
    variant = f", {point.variant}" if point.variant else ""
    return f"{point.model} {point.mode}, batch {point.batch:,}{variant}"


def _environment(bench: BenchResult) -> Section:
    facts = Facts.known(*bench.versions.items(), ("started", bench.started or None))
    blocks: list[Block] = [Code(bench.command, "sh")] if bench.command else []
    blocks.append(Facts((*facts.pairs, *machine_facts(bench.machine))))
    return Section("environment", "Environment", tuple(blocks), Weight.DETAIL)
