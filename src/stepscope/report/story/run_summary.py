"""A run at a glance: the verdict, the figures, how it ended, what to type next."""

from typing import Any

from stepscope.report.finding_words import fix_names, fixing
from stepscope.report.run_words import counted, ending, fix_state, noun, remarks
from stepscope.report.story.blocks import Block, Code, Facts, Missing, Say, Section
from stepscope.report.story.places import NO_STEPS, run_again, shown_file
from stepscope.report.text import milliseconds, size

Document = dict[str, Any]


def run_verdict(document: Document) -> str:
    """The one sentence: how it ended where it did not end well, what is slow, what could be."""
    end = ending(document)
    told = f"{_capital(end[0])}. " if end else ""
    if not document["steps"]["count"]:
        return f"{told}No steps were seen."
    return told + bottleneck(document)


def bottleneck(document: Document) -> str:
    """What is slow and what could be, of a run's steps or a recording's."""
    findings, could = document["findings"], document["headroom"]
    if findings and could and findings[0]["id"] in could["by"]:
        return f"{findings[0]['title']}: {could['text']}."
    if findings and could:
        return f"{findings[0]['title']}. {_capital(could['text'])}."
    if findings:
        return f"{findings[0]['title']}."
    return "No bottleneck found: no change is known to save 2% of a step."


def run_subtitle(document: Document) -> str:
    """Program, steps, device, versions, date."""
    run = document["run"]
    gpu = (document["gpu"] or {}).get("name")
    torch = str(run["torch"]).partition("+")[0] if run["torch"] else None
    parts = [
        shown_file(run["program"], run["program"]),
        counted(document),
        gpu or (run["device"] or "cpu").upper(),
        f"torch {torch}" if torch else None,
        str(run.get("started") or "")[:16].replace("T", " ") or None,
        f"run {run['id']}",
    ]
    return " · ".join(str(part) for part in parts if part)


def run_summary(document: Document) -> Section:
    """The section at the top."""
    blocks: list[Block] = [Say(f"{_capital(text)}.", strong=True) for text in ending(document)]
    blocks.append(Facts(tuple(_figures(document))))
    blocks += [Say(f"{_capital(fix_state(fix))}.") for fix in document["fixes"]]
    if not document["steps"]["count"]:
        blocks.append(Missing("No steps were seen.", NO_STEPS))
    blocks += [Say(f"{_capital(text)}.") for text in remarks(document)]
    names = fix_names(document)
    if names:
        blocks.append(Say("All that goes together, applied at run time:"))
        blocks.append(
            Code(run_again(document, fixing(names).removeprefix("stepscope run ")), "shell")
        )
    return Section("summary", "At a glance", tuple(blocks))


def _figures(document: Document) -> list[tuple[str, str]]:
    steps, gpu, memory = document["steps"], document["gpu"], document["memory"]
    pairs = [("steps", counted(document))]
    if steps["mean_ms"] is not None:
        pairs.append((f"time per {noun(document)}", f"{milliseconds(steps['mean_ms'])} ms"))
    if steps["samples_per_s"]:
        pairs.append(("samples per second", f"{steps['samples_per_s']:,.0f}"))
    could = document["headroom"]
    if could:
        now = milliseconds(could["step_ms"])
        pairs.append(("could take", f"{now} ms ({could['speedup']:.2f}×)"))
    if gpu and gpu["busy_fraction"] is not None:
        pairs.append(("GPU busy", f"{gpu['busy_fraction']:.0%}"))
    if gpu:
        of = f" of {size(gpu['total_bytes'])}" if gpu["total_bytes"] else ""
        pairs.append(("peak GPU memory", f"{size(gpu['peak_allocated_bytes'])}{of}"))
    elif memory["peak_bytes"]:
        pairs.append(("peak memory", size(memory["peak_bytes"])))
    if gpu and gpu["energy_j_per_step"] is not None:
        pairs.append(("energy per step", f"{gpu['energy_j_per_step']:,.3g} J"))
    return pairs


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
