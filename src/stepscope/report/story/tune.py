"""The story of a tune: the ladder, what was rejected, the proof, what it takes, how to keep it."""

from typing import Any

from stepscope.report.story.blocks import Block, Code, Facts, Missing, Say, Section, Story
from stepscope.report.story.environment import machine_facts
from stepscope.report.story.places import shown_file
from stepscope.report.story.tune_ladder import ladder_section, resources_section
from stepscope.report.story.tune_proof import proof_section
from stepscope.report.story.tune_tried import rejected_section
from stepscope.report.subject import Subject
from stepscope.report.text import milliseconds, plural, seconds
from stepscope.report.tune_words import claim, stopped

Document = dict[str, Any]


def story_of_tune(subject: Subject) -> Story:
    """Everything a tune came to."""
    document = subject.document
    sections = (
        _summary(document),
        ladder_section(document),
        proof_section(document, subject.folder),
        resources_section(document),
        rejected_section(document),
        _keep(document),
        _environment(document),
    )
    return Story(
        title=f"tune of {shown_file(document['run']['program'])}",
        verdict=claim(document)[0],
        subtitle=_subtitle(document),
        sections=tuple(part for part in sections if part.blocks),
        kind="tune",
    )


def _subtitle(document: Document) -> str:
    run = document["run"]
    torch = str(run["torch"]).partition("+")[0]
    parts = [
        shown_file(run["program"]),
        run["device_name"],
        f"torch {torch}",
        f"{plural(document['trials'], 'trial')} in {seconds(document['seconds'])}",
        str(run.get("finished") or "")[:16].replace("T", " "),
        run["id"],
    ]
    return " · ".join(str(part) for part in parts if part)


def _summary(document: Document) -> Section:
    before, after = _sides(document)
    pairs = []
    for name, key, shown in _FIGURES:
        values = [side.get(key) for side in (before, after)]
        if values[0] is not None:
            words = " → ".join(shown(value) for value in values if value is not None)
            pairs.append((name, words))
    pairs.append(("trials", f"{document['trials']:,} in {seconds(document['seconds'])}"))
    blocks: list[Block] = [Facts(tuple(pairs))]
    if text := stopped(document):
        blocks.append(Say(f"{text[:1].upper()}{text[1:]}."))
    return Section("summary", "At a glance", tuple(blocks))


_FIGURES = (
    ("step", "step_ms", lambda value: f"{milliseconds(value)} ms"),
    ("samples per second", "samples_per_s", milliseconds),
    ("GPU busy", "gpu_busy", lambda value: f"{value:.0%}"),
    ("energy of a sample", "energy_j_per_sample", lambda value: f"{value:.3g} J"),
    ("cost of a million samples", "cost_per_million", lambda value: f"{value:.3g}"),
)


def _sides(document: Document) -> tuple[Document, Document]:
    """Before and after: as fresh trials measured them where there were any."""
    final = (document["final"] or {}).get("measured")
    if final:
        return final["baseline"], final["ladder"]
    last = document["ladder"][-1] if document["ladder"] else {}
    return document["baseline"], last


def _keep(document: Document) -> Section:
    """How to run it so today, and the edits that keep it."""
    blocks: list[Block] = []
    if document["command"]:
        blocks += [Say("Run it so, with nothing edited:"), Code(document["command"], "sh")]
    patch = document["patch"]
    if patch is not None and patch.get("text"):
        blocks.append(Say(_checked(patch)))
        blocks.append(Code(patch["text"], "diff"))
    for one in (patch or {}).get("by_hand", ()):
        blocks.append(Say(f"By hand, {one['fix']}: {one['words']}"))
    if document["command"] and not (patch or {}).get("text"):
        why = (patch or {}).get("why") or "no edit of the source is known for these fixes"
        blocks.append(Missing("There is no patch.", f"{why[:1].upper()}{why[1:]}."))
    return Section("keep", "Keep it", tuple(blocks))


def _checked(patch: Document) -> str:
    edits = plural(len(patch["edits"]), "edit")
    if patch.get("speedup") is None:
        return f"The same as {edits} of the source ({patch.get('why') or 'not measured'}):"
    interval = f"{patch['low']:.2f}–{patch['high']:.2f}"
    found = f"{patch['speedup']:.2f}× ({interval}, {patch['verdict']})"
    return f"The same as {edits} of the source, applied and measured: {found}."


def _environment(document: Document) -> Section:
    run, asked = document["run"], document["request"]
    shown = (
        ("program", " ".join(map(str, (run["program"], *run["argv"])))),
        ("finished", run.get("finished")),
        ("git", run.get("git")),
        ("Python", run.get("python")),
        ("torch", run.get("torch")),
        ("stepscope", run.get("stepscope")),
        ("tune", run.get("id")),
    )
    limits = (
        ("fixes may change", asked.get("allow")),
        ("objective", asked.get("objective")),
        ("only", ", ".join(asked.get("only") or ()) or None),
        ("left out", ", ".join(asked.get("skip") or ()) or None),
        ("seeds of the proof", asked.get("seeds")),
        ("budget", seconds(asked["budget_s"]) if asked.get("budget_s") else None),
    )
    pairs = [(name, str(value)) for name, value in (*shown, *limits) if value is not None]
    blocks: list[Block] = [Facts(tuple(pairs))]
    if machine := machine_facts(document["machine"] or {}):
        blocks.append(Facts(tuple(machine)))
    blocks += [Say(f"Note: {note}.") for note in document["notes"]]
    return Section("environment", "Environment", tuple(blocks))
