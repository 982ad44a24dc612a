"""What ran, where, and how it went: the first and last sections of a report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepscope.diagnose.case import in_times
from stepscope.record.units import capitalized, format_bytes, format_number, plural
from stepscope.report.story.blocks import (
    Block,
    Card,
    Cell,
    Code,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Table,
    Tone,
    Weight,
)
from stepscope.report.story.findings import fixes_to_run, suggested_fixes
from stepscope.report.story.phrases import (
    NO_BOTTLENECK,
    NO_STEPS,
    busy_machine,
    command_line,
    counted_steps,
    display_path,
    fix_options,
    fix_outcome,
    joined,
    minute_text,
    outcome_sentences,
    rerun_command,
    run_remarks,
    shown_program,
    step_noun,
    torch_text,
)
from stepscope.report.story.run.ranks import counted_ranks, rank_notes

Document = dict[str, Any]


def run_verdict(document: Document) -> str:
    """The verdict in one sentence: how it failed, if it did; what is slow; what is possible."""
    told = bottleneck(document) if document["steps"]["count"] else "No steps seen."
    return " ".join([*outcome_sentences(document)[:1], told])


def bottleneck(document: Document) -> str:
    """What is slow and what is possible, for the steps of a run or recording."""
    findings = document["findings"]
    if not findings:
        return NO_BOTTLENECK
    reach = in_reach(document)
    return f"{findings[0]['title']}." + (f" {capitalized(reach)}." if reach else "")


def in_reach(document: Document) -> str:
    """`up to 6.4× faster with 3 fixes (9.9 ms per step)`; empty without predictions."""
    could = document.get("headroom")
    if could is None:
        return ""
    digits = 1 if could["speedup"] >= 1.095 else 2
    return (
        f"up to {could['speedup']:.{digits}f}× faster"
        f" with {plural(len(could['by']), 'fix', 'fixes')}"
        f" ({format_number(could['step_ms'])} ms per step)"
    )


def findings_lead(document: Document, section: Section, short: bool = False) -> Section:
    """`short`: only the cards, with the possible gain in the title, since no verdict precedes
    them."""
    if not short:
        return replace(section, weight=Weight.LEAD)
    reach = in_reach(document)
    title = f"{section.title} — {reach}" if reach else section.title
    cards = tuple(one for one in section.blocks if isinstance(one, Card))
    return replace(section, title=title, blocks=cards, weight=Weight.LEAD)


def run_subtitle(document: Document, dated: bool = True) -> str:
    """Program, steps, device, versions, and the date if `dated`."""
    run = document["run"]
    program = shown_program(run)
    return joined(
        display_path(program, program),
        counted_steps(document),
        counted_ranks(document),
        (document["gpu"] or {}).get("name") or (run["device"] or "cpu").upper(),
        torch_text(run["torch"]),
        minute_text(run.get("started")) if dated else None,
        f"run {run['id']}",
    )


def run_summary(document: Document) -> Section:
    """The section at the top."""
    notes = [*rank_notes(document), *run_remarks(document)]
    blocks: list[Block] = [*summary_blocks(document), *notes]
    if not document["steps"]["count"]:
        blocks.append(Missing("No steps seen.", NO_STEPS))
    if names := suggested_fixes(document):
        command = rerun_command(document, fix_options(fixes_to_run(document, names)))
        blocks += [Paragraph("Apply all compatible fixes:"), Code(command, "sh")]
    return Section("summary", "At a glance", tuple(blocks), Weight.LEAD)


def summary_blocks(document: Document) -> list[Block]:
    """How it ended, what became of its fixes, the numbers."""
    tone = Tone.WARN if document["run"]["exit_code"] is None else Tone.BAD
    ended = [Paragraph(text, strong=True, tone=tone) for text in outcome_sentences(document)]
    fixes = map(fix_outcome, document["fixes"])
    return [*ended, *_effect(document), *fixes, *busy_machine(document), _figures(document)]


_NOTABLE = 1.02  # times the step that is shown: what epochs take to begin is then told
_VERDICTS = {"faster": Tone.GOOD, "slower": Tone.BAD}


def _effect(document: Document) -> list[Block]:
    """`workers=12   63.1 → 23.4 ms   2.70× faster   (predicted 2.6×)`."""
    effect = document.get("fix_effect")
    if effect is None:
        return []
    keys, unit = ("before_ms", "after_ms"), "ms"
    if effect["by_samples"]:
        keys, unit = ("before_samples_per_s", "after_samples_per_s"), "samples/s"
    before, after = (format_number(effect[key]) for key in keys)
    if effect["after_ms"] > _NOTABLE * (document["steps"]["mean_ms"] or effect["after_ms"]):
        unit = f"{unit} with epoch starts"
    speedup, verdict = effect["measured"]["speedup"], effect["verdict"]
    said = {"faster": f"{speedup:.2f}× faster", "slower": f"{1 / speedup:.2f}× slower"}
    change = said.get(verdict, f"{speedup:.2f}×, within noise")
    told = effect["predicted"]
    promised = "" if told is None else f"(predicted {in_times(told['speedup'])}×)"
    parts = (" + ".join(effect["fixes"]), f"{before} → {after} {unit}", change, promised)
    text = joined(*parts, by="   ")
    return [Paragraph(text, strong=True, tone=_VERDICTS.get(verdict, Tone.PLAIN))]


def _figures(document: Document) -> Facts:
    steps, gpu, memory = document["steps"], document["gpu"], document["memory"]
    word, could = step_noun(document), document.get("headroom")
    shown = [("steps", counted_steps(document), "")]
    if steps["mean_ms"] is not None:
        mean = f"{format_number(steps['mean_ms'])} ms"
        shown.append((f"time per {word}", mean, f"{mean} per {word}"))
    if steps["samples_per_s"]:
        ranks = sum(one["steps"] > 0 for one in document.get("ranks") or ()) or 1
        rate = format_number(ranks * steps["samples_per_s"])
        shown.append(("samples per second", rate, f"{rate} samples/s"))
    if could:
        reach = f"{format_number(could['step_ms'])} ms ({could['speedup']:.2f}×)"
        shown.append(("in reach", reach, ""))
    if gpu and gpu["busy_fraction"] is not None:
        busy = f"{gpu['busy_fraction']:.0%}"
        shown.append(("GPU busy", busy, f"GPU busy {busy}"))
    if gpu:
        peak = _bytes_of(gpu["peak_allocated_bytes"], gpu["total_bytes"])
        shown.append(("peak GPU memory", peak, f"peak {peak}"))
    elif memory["peak_bytes"]:
        peak = format_bytes(memory["peak_bytes"])
        shown.append(("peak memory", peak, f"peak {peak}"))
    if gpu and gpu["energy_j_per_step"] is not None:
        shown.append(("energy per step", f"{gpu['energy_j_per_step']:,.3g} J", ""))
    return Facts.headline(*shown)


def _bytes_of(part: float, whole: float | None) -> str:
    """`3.1 of 140 GiB`; with both units if they differ."""
    text, number = format_bytes(part), format_bytes(whole).replace(".0 ", " ") if whole else ""
    same = text.partition(" ")[2] == number.partition(" ")[2]
    return f"{text.partition(' ')[0] if same else text} of {number}" if whole else text


def environment_section(document: Document) -> Section:
    """Everything needed to rerun it under the same conditions."""
    config, run = document["config"], document["run"]
    more = {key: config.get(key) for key in ("autocast", "scaler", "distributed")}
    switches = (config.get("switches") or {}) | {k: v for k, v in more.items() if v is not None}
    blocks: list[Block] = [
        Facts.known(
            ("program", command_line(run)),
            ("started", run.get("started")),
            ("exit code", run.get("exit_code")),
            ("git", run.get("git")),
            ("Python", run.get("python")),
            ("torch", run.get("torch")),
            ("stepscope", run.get("stepscope")),
            ("run", run.get("id")),
        ),
        Facts(machine_facts(config.get("machine") or {})),
        *_models(config.get("models") or []),
        *_optimizers(config.get("optimizers") or []),
        *_named("switches", "Switches", switches),
        *_named("compile", "torch.compile", document["compile"] or {}),
        *_named("variables", "Environment variables", config.get("environment") or {}),
    ]
    return Section("environment", "Environment", tuple(blocks), Weight.DETAIL)


def machine_facts(machine: Document) -> tuple[tuple[str, str], ...]:
    """Devices, memory and system, as far as known."""
    cpu, memory = machine.get("cpu") or {}, machine.get("memory") or {}
    pairs: list[tuple[str, object]] = []
    for gpu in machine.get("gpus") or ():
        total = gpu.get("memory_bytes")
        pairs.append(("GPU", f"{gpu.get('name')}" + (f", {format_bytes(total)}" if total else "")))
    if cpu.get("model"):
        cores = f", {cpu['usable_cores']} usable cores" if cpu.get("usable_cores") else ""
        pairs.append(("CPU", f"{cpu['model']}{cores}"))
    if memory.get("total_bytes"):
        pairs.append(("memory", format_bytes(memory["total_bytes"])))
    pairs.append(("CUDA", (machine.get("torch") or {}).get("cuda")))
    pairs += [(name, machine.get(name)) for name in ("driver", "system")]
    return Facts.known(*pairs).pairs


def _models(models: list[Document]) -> list[Table]:
    return Table.known(
        "models",
        "Models",
        models,
        (Column("model"), lambda one: one.get("name")),
        (Column.numeric("parameters", digits=15), lambda one: one.get("parameters")),
        (Column.numeric("trainable", digits=15), lambda one: one.get("trainable")),
        (Column("types"), lambda one: ", ".join(one.get("dtypes") or ())),
        (Column("devices"), lambda one: ", ".join(one.get("devices") or ())),
        (Column("memory format"), lambda one: one.get("memory_format")),
        (Column("compiled"), lambda one: one.get("compiled")),
    )


def _optimizers(optimizers: list[Document]) -> list[Table]:
    keys = ("name", "parameters", "groups", "lr", "foreach", "fused")
    columns = tuple(Column(key, number=key in ("parameters", "groups", "lr")) for key in keys)
    rows = tuple(tuple(_cell(one.get(key)) for key in keys) for one in optimizers)
    return [Table("optimizers", columns, rows, "Optimizers")] if rows else []


def _named(name: str, title: str, values: Mapping[str, Any]) -> list[Table]:
    fields = (Column("name"), lambda one: str(one[0])), (Column("value"), lambda one: _cell(one[1]))
    return Table.known(name, title, values.items(), *fields, empty_columns=True)


def _cell(value: Any) -> Cell:
    """A raw value; compound values in words."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
