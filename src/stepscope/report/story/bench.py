"""The story of a benchmark: of a grid of points, a study, a loader grid or a table of kernels."""

from typing import Any

from stepscope.report.bench import device_names, impossible
from stepscope.report.bench_columns import floor_words
from stepscope.report.story.bench_grid import grid_sections, grid_verdict
from stepscope.report.story.bench_kernels import kernels_sections, kernels_verdict
from stepscope.report.story.bench_loader import loader_sections, loader_verdict
from stepscope.report.story.bench_study import study_sections, study_title, study_verdict
from stepscope.report.story.blocks import Block, Code, Facts, Missing, Say, Section, Story
from stepscope.report.story.environment import machine_facts
from stepscope.report.subject import Subject

Document = dict[str, Any]


def story_of_bench(subject: Subject) -> Story:
    """Whatever was measured, with the same frame around it."""
    document = subject.document
    title, verdict, sections = _of(document)
    return Story(
        title=title,
        verdict=verdict,
        subtitle=_subtitle(document),
        sections=(*sections, *_notes(document), _environment(document)),
        kind="bench",
    )


def _of(document: Document) -> tuple[str, str, list[Section]]:
    if study := document.get("study"):
        return study_title(study), study_verdict(study), study_sections(study)
    if found := document.get("kernels"):
        title = f"kernels of {found['model']}, {found['mode']}, batch {found['batch']:,}"
        return title, kernels_verdict(found), kernels_sections(found)
    if loader := document.get("loader"):
        points = document["points"]
        name = points[0]["model"] if points else "a loader"
        return f"loading {name}", loader_verdict(loader), loader_sections(loader, points)
    if not document["points"]:
        missing = Missing("No point was measured.", "stepscope bench resnet18 measures one.")
        return "benchmark", "Nothing was measured.", [Section("points", "Points", (missing,))]
    return _title(document), grid_verdict(document), grid_sections(document)


def _title(document: Document) -> str:
    models = list(dict.fromkeys(point["model"] for point in document["points"]))
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    return f"bench of {', '.join(models[:3])}{more}"


def _subtitle(document: Document) -> str:
    machine = document.get("machine") or {}
    torch = (machine.get("torch") or {}).get("version")
    parts = [
        *(device_names(document) or _device(document)),
        f"torch {str(torch).partition('+')[0]}" if torch else None,
        str(document.get("started") or "")[:16].replace("T", " ") or None,
    ]
    return " · ".join(str(part) for part in parts if part)


def _device(document: Document) -> list[str]:
    """Of a study or of kernels, which have no points."""
    machine, kernels = document.get("machine") or {}, document.get("kernels")
    gpus = [gpu.get("name") for gpu in machine.get("gpus") or []]
    on_cpu = kernels is not None and kernels["device"] == "cpu"
    cpu = (machine.get("cpu") or {}).get("model")
    name = cpu if on_cpu or not gpus else gpus[0]
    return [str(name)] if name else []


def _notes(document: Document) -> list[Section]:
    notes = [_capital(str(note)) for note in document.get("notes") or ()]
    for point in document.get("points") or ():
        named = f"{point['model']} {point['mode']}, batch {point['batch']:,}"
        named += f", {point['variant']}" if point.get("variant") else ""
        if point.get("unstable"):
            why = point.get("unstable_why") or "its times did not settle"
            notes.append(f"{named} is unstable: {why}")
        notes += [f"{named}: {note}" for note in point.get("notes") or ()]
        for one in point.get("not_applied") or ():
            notes.append(f"{named}: without {one['name']}: {one['why']}")
    floor = document.get("noise_floor")
    if floor is not None:
        notes.append(_capital(floor_words(floor)))
    if words := impossible(document.get("points") or []):
        notes.append(_capital(words))
    blocks = [Say(f"{note}.") for note in dict.fromkeys(notes)]
    return [Section("quality", "How far to trust this", tuple(blocks))] if blocks else []


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _environment(document: Document) -> Section:
    blocks: list[Block] = []
    if command := document.get("command"):
        shown = command if isinstance(command, str) else " ".join(map(str, command))
        blocks.append(Code(shown, "sh"))
    versions = document.get("versions") or {}
    pairs = [(name, str(value)) for name, value in versions.items() if value is not None]
    pairs += [("started", str(document["started"]))] if document.get("started") else []
    pairs += machine_facts(document.get("machine") or {})
    blocks.append(Facts(tuple(pairs)))
    return Section("environment", "Environment", tuple(blocks))
