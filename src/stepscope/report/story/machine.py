"""The story of `stepscope doctor`: what this machine is, what can be measured, its ceilings."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepscope.hardware.ceiling_cache import CEILING_NAMES, format_quantity
from stepscope.record.probe_options import Wall
from stepscope.record.units import plural
from stepscope.report.story.blocks import (
    Block,
    Cell,
    Column,
    Command,
    Facts,
    Paragraph,
    Section,
    Story,
    Table,
    Tone,
    Weight,
)
from stepscope.report.story.phrases import joined

Document = dict[str, Any]
_GIB = 1 << 30

WALL_TEXTS = {
    Wall.NAMESPACES: "write only to their own folders (mount namespace)",
    Wall.LANDLOCK: "write only to their own folders (Landlock)",
    Wall.NONE: "not guarded by the kernel: tune and batch ask for --unguarded",
}
UNGUARDED = (
    "unguarded: trials are stopped before Python writes outside their folder; programs they start,"
    " native code, sockets and FIFOs are not"
)


def machine_story(document: Document) -> Story:
    """The machine, what stepscope can measure on it, and how fast it can be."""
    commands = [Command("stepscope run train.py", "observe a program")]
    if document["ceilings"]:
        commands.append(Command("stepscope doctor --refresh", "measure the ceilings again"))
    cautions = tuple(Paragraph(f"note: {text}", tone=Tone.WARN) for text in document["cautions"])
    entries = document["can_measure"]
    measurable = Table.of(
        "measurable",
        "",
        entries,
        (Column(""), lambda one: "✓" if one["ok"] else "✗"),
        (Column("what"), lambda one: str(one["what"])),
        (Column("how"), lambda one: str(one["detail"])),
        shown=len(entries),
        tones=tuple(Tone.PLAIN if one["ok"] else Tone.QUIET for one in entries),
    )
    facts = (*_machine(document["machine"]), ("trials", WALL_TEXTS[Wall(document["wall"])]))
    sections = (
        Section("machine", "", (Facts(facts),)),
        Section("measurable", "What stepscope can measure here", (measurable,)),
        Section("ceilings", *_ceilings(document)),
        Section("cautions", "", cautions),
    )
    return Story(
        title="This machine",
        sections=tuple(replace(part, weight=Weight.LEAD) for part in sections),
        kind="machine",
        next=tuple(commands),
    )


def _machine(machine: Document) -> Iterator[tuple[str, str]]:
    cpu, memory, torch = machine["cpu"], machine["memory"], machine["torch"]
    physical, logical, usable = cpu["physical_cores"], cpu["logical_cores"], cpu["usable_cores"]
    cores = f"{physical or logical} cores"
    cores += f", {logical} threads" if physical and logical != physical else ""
    cores += f", {usable:g} usable here" if usable != logical else ""
    yield "CPU", joined(cpu["model"] or "unknown", cores)
    details = joined(
        plural(cpu["numa_nodes"], "NUMA node") if cpu["numa_nodes"] else None,
        f"governor {cpu['governor']}" if cpu["governor"] else None,
        "virtual machine" if cpu["virtual"] else None,
        f"load {cpu['load_average'][0]:.1f}" if cpu["load_average"] else None,
    )
    if details:
        yield "", details
    limit, free = memory["limit_bytes"], memory["available_bytes"]
    limited = f"limited to {limit / _GIB:.1f} GiB here" if limit else None
    total = f"{memory['total_bytes'] / _GIB:.0f} GiB"
    yield "memory", joined(total, f"{free / _GIB:.0f} GiB free", limited)
    yield from _gpus(machine)
    build = f"CUDA {torch['cuda']}" if torch and torch["cuda"] else "CPU build"
    version = f"torch {torch['version']} ({build})" if torch else "no torch"
    driver = f"driver {machine['driver']}" if machine["driver"] else None
    yield "software", joined(f"Python {machine['python']}", version, driver)


def _gpus(machine: Document) -> Iterator[tuple[str, str]]:
    if not machine["gpus"]:
        yield "GPU", "none" if machine["driver"] else "none (no NVIDIA driver)"
    for gpu in machine["gpus"]:
        pcie = gpu["pcie_generation_max"] and gpu["pcie_width"]
        told = joined(
            gpu["name"] or "unknown",
            f"{gpu['memory_bytes'] / _GIB:.0f} GiB" if gpu["memory_bytes"] else None,
            f"compute {gpu['compute_capability']}" if gpu["compute_capability"] else None,
            f"{gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else None,
            f"PCIe {gpu['pcie_generation_max']} x{gpu['pcie_width']}" if pcie else None,
            "MIG" if gpu["mig"] else None,
        )
        yield f"GPU {gpu['index']}", told
    links = Counter(pair["link"] or "unknown" for pair in machine["topology"])
    if links:
        yield "links", joined(*(f"{count} x {name}" for name, count in links.most_common()))


def _ceilings(document: Document) -> tuple[str, tuple[Block, ...]]:
    ceilings, problem = document["ceilings"], document["problem"]
    if not ceilings:
        return "Ceilings", (Paragraph(problem or "Not measured yet: run stepscope doctor."),)
    found = ceilings["ceilings"]
    groups: dict[str, list[tuple[str, Document]]] = {}
    for name, words in CEILING_NAMES.items():
        if name in found:
            groups.setdefault(words.group, []).append((name, found[name]))
    rows: list[tuple[Cell, ...]] = []
    for group, members in groups.items():
        best = max(one["value"] for _, one in members)
        for at, (name, one) in enumerate(members):
            number, unit = format_quantity(one["value"], CEILING_NAMES[name].unit)
            share = one["value"] / best if len(members) > 1 else None
            spread = f"±{100 * one['spread'] / 2:.0f}%"
            head, label = "" if at else group, CEILING_NAMES[name].label
            rows.append((head, label, f"{number} {unit}", spread, share))
    names = (Column(""), Column("what"), Column("measured"), Column("spread"))
    columns = (*names, Column("", bar=True, priority=1))
    blocks: list[Block] = [Table("ceilings", columns, tuple(rows), shown=len(rows))]
    failed = ceilings.get("failed", {})
    blocks += [Paragraph(f"{name}: {why}", tone=Tone.QUIET) for name, why in failed.items()]
    blocks += [Paragraph(problem, tone=Tone.WARN)] if problem else []
    device = ceilings["device"] or "this machine"
    return f"Ceilings measured on {device} · {ceilings['measured_at'][:10]}", tuple(blocks)
