"""The story of `stepscope doctor`: what this machine is, what can be measured, its ceilings."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from stepscope.hardware.ceiling_cache import CEILING_NAMES, format_quantity
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

Document = dict[str, Any]
_GIB = 1 << 30


def machine_story(document: Document) -> Story:
    """The machine, what stepscope can measure on it, and how fast it can be."""
    commands = [Command("stepscope run train.py", "observe a program")]
    if document["ceilings"]:
        commands.append(Command("stepscope doctor --refresh", "measure the ceilings again"))
    cautions = [Paragraph(f"note: {text}", tone=Tone.WARN) for text in document["cautions"]]
    sections = (
        Section("machine", "", (Facts(tuple(_machine(document["machine"]))),)),
        Section(
            "measurable", "What stepscope can measure here", (_measurable(document["can_measure"]),)
        ),
        Section("ceilings", *_ceilings(document)),
        Section("cautions", "", tuple(cautions)),
    )
    return Story(
        title="This machine",
        verdict="",
        subtitle="",
        sections=tuple(Section(s.id, s.title, s.blocks, Weight.LEAD) for s in sections),
        kind="machine",
        next=tuple(commands),
    )


def _machine(machine: Document) -> Iterator[tuple[str, str]]:
    cpu, memory, torch = machine["cpu"], machine["memory"], machine["torch"]
    yield "CPU", _joined(cpu["model"] or "unknown", _cores(cpu))
    details = _joined(
        plural(cpu["numa_nodes"], "NUMA node") if cpu["numa_nodes"] else None,
        f"governor {cpu['governor']}" if cpu["governor"] else None,
        "virtual machine" if cpu["virtual"] else None,
        f"load {cpu['load_average'][0]:.1f}" if cpu["load_average"] else None,
    )
    if details:
        yield "", details
    limit = memory["limit_bytes"]
    yield (
        "memory",
        _joined(
            f"{memory['total_bytes'] / _GIB:.0f} GiB",
            f"{memory['available_bytes'] / _GIB:.0f} GiB free",
            f"limited to {limit / _GIB:.1f} GiB here" if limit else None,
        ),
    )
    yield from _gpus(machine)
    build = f"CUDA {torch['cuda']}" if torch and torch["cuda"] else "CPU build"
    yield (
        "software",
        _joined(
            f"Python {machine['python']}",
            f"torch {torch['version']} ({build})" if torch else "no torch",
            f"driver {machine['driver']}" if machine["driver"] else None,
        ),
    )


def _cores(cpu: Document) -> str:
    physical, logical, usable = cpu["physical_cores"], cpu["logical_cores"], cpu["usable_cores"]
    words = f"{physical or logical} cores"
    if physical and logical != physical:
        words += f", {logical} threads"
    return words if usable == logical else f"{words}, {usable:g} usable here"


def _gpus(machine: Document) -> Iterator[tuple[str, str]]:
    if not machine["gpus"]:
        yield "GPU", "none" if machine["driver"] else "none (no NVIDIA driver)"
    for gpu in machine["gpus"]:
        pcie = gpu["pcie_generation_max"] and gpu["pcie_width"]
        yield (
            f"GPU {gpu['index']}",
            _joined(
                gpu["name"] or "unknown",
                f"{gpu['memory_bytes'] / _GIB:.0f} GiB" if gpu["memory_bytes"] else None,
                f"compute {gpu['compute_capability']}" if gpu["compute_capability"] else None,
                f"{gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else None,
                f"PCIe {gpu['pcie_generation_max']} x{gpu['pcie_width']}" if pcie else None,
                "MIG" if gpu["mig"] else None,
            ),
        )
    links = Counter(pair["link"] or "unknown" for pair in machine["topology"])
    if links:
        yield "links", _joined(*(f"{count} x {name}" for name, count in links.most_common()))


def _joined(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


def _measurable(entries: list[Document]) -> Table:
    rows = tuple(
        ("✓" if one["ok"] else "✗", str(one["what"]), str(one["detail"])) for one in entries
    )
    tones = tuple(Tone.PLAIN if one["ok"] else Tone.QUIET for one in entries)
    columns = (Column(""), Column("what"), Column("how"))
    return Table("measurable", columns, rows, shown=len(rows), tones=tones)


def _ceilings(document: Document) -> tuple[str, tuple[Block, ...]]:
    ceilings, problem = document["ceilings"], document["problem"]
    if not ceilings:
        words = problem or "Not measured yet: run stepscope doctor."
        return "Ceilings", (Paragraph(words),)
    device = ceilings["device"] or "this machine"
    found = ceilings["ceilings"]
    best: dict[str, float] = {}
    for name, words in CEILING_NAMES.items():
        if name in found:
            best[words.group] = max(best.get(words.group, 0.0), found[name]["value"])
    several = Counter(CEILING_NAMES[name].group for name in found if name in CEILING_NAMES)
    rows: list[tuple[Cell, ...]] = []
    group = ""
    for name, words in CEILING_NAMES.items():
        if name not in found:
            continue
        number, unit = format_quantity(found[name]["value"], words.unit)
        spread = f"±{100 * found[name]['spread'] / 2:.0f}%"
        head = words.group if words.group != group else ""
        share = found[name]["value"] / best[words.group] if several[words.group] > 1 else None
        rows.append((head, words.label, f"{number} {unit}", spread, share))
        group = words.group
    columns = (
        Column(""),
        Column("what"),
        Column("measured"),
        Column("spread"),
        Column("", bar=True, priority=1),
    )
    blocks: list[Block] = [Table("ceilings", columns, tuple(rows), shown=len(rows))]
    failed = ceilings.get("failed", {})
    blocks += [Paragraph(f"{name}: {why}", tone=Tone.QUIET) for name, why in failed.items()]
    blocks += [Paragraph(problem, tone=Tone.WARN)] if problem else []
    return f"Ceilings measured on {device} · {ceilings['measured_at'][:10]}", tuple(blocks)
