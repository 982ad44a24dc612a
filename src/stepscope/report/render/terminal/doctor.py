"""The screen of `stepscope doctor`: what this machine is, what can be measured, its ceilings."""

from collections import Counter
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from rich.text import Text

from stepscope.hardware.ceiling_cache import CEILING_NAMES, CeilingName, format_quantity
from stepscope.report.render.terminal.console import to_ascii

_GIB: Final = 1 << 30
_WIDTH: Final = 80
_BAR: Final = 24


def doctor_screen(document: dict[str, Any], ascii_only: bool = False) -> Text:
    """The screen, at most 80 columns wide; `ascii_only` for outputs that cannot carry more."""
    text = Text("\n").join(_lines(document))
    if ascii_only:
        text.plain = to_ascii(text.plain)
    return text


def _lines(document: dict[str, Any]) -> Iterator[Text]:
    machine = document["machine"]
    yield Text("This machine", "bold")
    yield Text()
    for name, value in _machine_fields(machine):
        yield from _field(name, value)
    yield Text()
    yield Text("What stepscope can measure here", "bold")
    yield Text()
    for capability in document["can_measure"]:
        yield from _capability(capability)
    yield Text()
    yield from _ceilings(document)
    if document["cautions"]:
        yield Text()
        for caution in document["cautions"]:
            yield from _wrapped(Text("Mind:  ", "yellow"), caution)
    yield Text()
    yield from _next(document)


def _field(name: str, value: str) -> Iterator[Text]:
    yield from _wrapped(Text(f"  {name:<9} ", "dim"), value)


def _wrapped(label: Text, words: str, style: str = "") -> Iterator[Text]:
    """A label and words after it, on as many lines as they take."""
    indent = len(label)
    for place, line in enumerate(wrap(words, _WIDTH - indent) or [""]):
        yield Text.assemble(label if place == 0 else " " * indent, (line, style))


def _machine_fields(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    cpu, memory, torch = machine["cpu"], machine["memory"], machine["torch"]
    yield "CPU", _joined(cpu["model"] or "unknown", _cores(cpu))
    details = _joined(
        f"{cpu['numa_nodes']} NUMA node{'s' * (cpu['numa_nodes'] > 1)}"
        if cpu["numa_nodes"]
        else None,
        f"governor {cpu['governor']}" if cpu["governor"] else None,
        "virtual machine" if cpu["virtual"] else None,
        f"load {cpu['load_average'][0]:.1f}" if cpu["load_average"] else None,
    )
    if details:
        yield "", details
    yield "memory", _memory(memory)
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


def _cores(cpu: dict[str, Any]) -> str:
    physical, logical, usable = cpu["physical_cores"], cpu["logical_cores"], cpu["usable_cores"]
    words = f"{physical or logical} cores"
    if physical and logical != physical:
        words += f", {logical} threads"
    return words if usable == logical else f"{words}, {usable:g} usable here"


def _memory(memory: dict[str, Any]) -> str:
    limit = memory["limit_bytes"]
    return _joined(
        f"{memory['total_bytes'] / _GIB:.0f} GiB",
        f"{memory['available_bytes'] / _GIB:.0f} GiB free",
        f"limited to {limit / _GIB:.1f} GiB here" if limit else None,
    )


def _gpus(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not machine["gpus"]:
        yield "GPU", "none" if machine["driver"] else "none (no NVIDIA driver)"
    for gpu in machine["gpus"]:
        yield (
            f"GPU {gpu['index']}",
            _joined(
                gpu["name"] or "unknown",
                f"{gpu['memory_bytes'] / _GIB:.0f} GiB" if gpu["memory_bytes"] else None,
                f"compute {gpu['compute_capability']}" if gpu["compute_capability"] else None,
                f"{gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else None,
                f"PCIe {gpu['pcie_generation_max']} x{gpu['pcie_width']}"
                if gpu["pcie_generation_max"] and gpu["pcie_width"]
                else None,
                "MIG" if gpu["mig"] else None,
            ),
        )
    links = Counter(pair["link"] or "unknown" for pair in machine["topology"])
    if links:
        yield "links", _joined(*(f"{count} x {name}" for name, count in links.most_common()))


def _joined(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


def _capability(entry: dict[str, Any]) -> Iterator[Text]:
    mark = ("✓", "green") if entry["ok"] else ("✗", "red")
    label = Text.assemble("  ", mark, f" {entry['what']:<17} ")
    yield from _wrapped(label, entry["detail"], "" if entry["ok"] else "dim")


def _ceilings(document: dict[str, Any]) -> Iterator[Text]:
    ceilings = document["ceilings"]
    if not ceilings:
        yield Text("Ceilings", "bold")
        yield Text()
        words = document["problem"] or "not measured yet: stepscope doctor"
        yield from _wrapped(Text("  "), words)
        return
    day = ceilings["measured_at"][:10]
    device = ceilings["device"] or "this machine"
    yield Text.assemble(("Ceilings", "bold"), f" measured on {device}", (f" · {day}", "dim"))
    yield Text()
    yield from _ceiling_table(ceilings["ceilings"])
    for name, why in ceilings.get("failed", {}).items():
        yield from _wrapped(Text("  "), f"{name}: {why}", "dim")
    if document["problem"]:
        yield from _wrapped(Text("  "), document["problem"], "yellow")


def _ceiling_table(ceilings: dict[str, Any]) -> Iterator[Text]:
    known = {name: CEILING_NAMES[name] for name in CEILING_NAMES if name in ceilings}
    best: dict[str, float] = {}
    for name, words in known.items():
        best[words.group] = max(best.get(words.group, 0.0), ceilings[name]["value"])
    compared = Counter(words.group for words in known.values())
    shown = ""
    for name, words in known.items():
        share = ceilings[name]["value"] / best[words.group] if compared[words.group] > 1 else 0.0
        yield _ceiling(words, ceilings[name], words.group != shown, share)
        shown = words.group


def _ceiling(words: CeilingName, entry: dict[str, Any], first: bool, share: float) -> Text:
    """One line; half the spread is what the median may be off, and a bar compares a group."""
    number, unit = format_quantity(entry["value"], words.unit)
    bar = f"▕{'█' * max(1, round(_BAR * share)):<{_BAR}}▏" if share else ""
    line = Text.assemble(
        (f"  {words.group if first else '':<15} ", "dim"),
        f"{words.label:<12} ",
        (f"{number:>6}", "bold"),
        f" {unit:<7} ",
        (f"±{100 * entry['spread'] / 2:.0f}%".ljust(6), "dim"),
        (bar, "cyan"),
    )
    line.rstrip()
    return line


def _next(document: dict[str, Any]) -> Iterator[Text]:
    commands = [("stepscope run train.py", "observe a program")]
    if document["ceilings"]:
        commands.append(("stepscope doctor --refresh", "measure the ceilings again"))
    for place, (command, purpose) in enumerate(commands):
        label = "Next:" if place == 0 else ""
        yield Text.assemble((f"{label:<7}", "dim"), f"{command:<29}", (purpose, "dim"))
