"""What ran where: program, versions, machine, configuration."""

from collections.abc import Mapping
from typing import Any

from stepscope.report.story.blocks import Block, Cell, Column, Facts, Section, Table
from stepscope.report.story.places import command_line
from stepscope.report.text import size

Document = dict[str, Any]


def environment_section(document: Document) -> Section:
    """All that is needed to run it again under the same conditions."""
    config = document["config"]
    blocks: list[Block] = [
        Facts(tuple(_program(document["run"]))),
        Facts(tuple(machine_facts(config.get("machine") or {}))),
        *_models(config.get("models") or []),
        *_optimizers(config.get("optimizers") or []),
        *_named("switches", "Switches", _switches(config)),
        *_named("compile", "torch.compile", document["compile"] or {}),
        *_named("variables", "Environment variables", config.get("environment") or {}),
    ]
    return Section("environment", "Environment", tuple(blocks))


def _program(run: Document) -> list[tuple[str, str]]:
    shown = (
        ("program", command_line(run)),
        ("started", run.get("started")),
        ("exit code", run.get("exit_code")),
        ("git", run.get("git")),
        ("Python", run.get("python")),
        ("torch", run.get("torch")),
        ("stepscope", run.get("stepscope")),
        ("run", run.get("id")),
    )
    return [(name, str(value)) for name, value in shown if value is not None]


def machine_facts(machine: Document) -> list[tuple[str, str]]:
    """The devices, the memory and the system under them, as far as known."""
    cpu, memory = machine.get("cpu") or {}, machine.get("memory") or {}
    pairs: list[tuple[str, str]] = []
    for gpu in machine.get("gpus") or ():
        total = gpu.get("memory_bytes")
        pairs.append(("GPU", f"{gpu.get('name')}" + (f", {size(total)}" if total else "")))
    if cpu.get("model"):
        cores = f", {cpu['usable_cores']} usable cores" if cpu.get("usable_cores") else ""
        pairs.append(("CPU", f"{cpu['model']}{cores}"))
    if memory.get("total_bytes"):
        pairs.append(("memory", size(memory["total_bytes"])))
    torch = machine.get("torch") or {}
    shown = (
        ("CUDA", torch.get("cuda")),
        ("driver", machine.get("driver")),
        ("system", machine.get("system")),
    )
    return pairs + [(name, str(value)) for name, value in shown if value is not None]


def _models(models: list[Document]) -> list[Block]:
    columns = (
        Column("model"),
        Column("parameters", number=True, digits=15),
        Column("trainable", number=True, digits=15),
        Column("types"),
        Column("devices"),
        Column("memory format"),
        Column("compiled"),
    )
    rows = tuple(
        (
            one.get("name"),
            one.get("parameters"),
            one.get("trainable"),
            ", ".join(one.get("dtypes") or ()),
            ", ".join(one.get("devices") or ()),
            one.get("memory_format"),
            one.get("compiled"),
        )
        for one in models
    )
    return [Table("models", columns, rows, "Models")] if rows else []


def _optimizers(optimizers: list[Document]) -> list[Block]:
    keys = ("name", "parameters", "groups", "lr", "foreach", "fused")
    columns = tuple(Column(key, number=key in ("parameters", "groups", "lr")) for key in keys)
    rows = tuple(tuple(_cell(one.get(key)) for key in keys) for one in optimizers)
    return [Table("optimizers", columns, rows, "Optimizers")] if rows else []


def _switches(config: Document) -> Document:
    more = {key: config.get(key) for key in ("autocast", "scaler", "distributed")}
    return {**(config.get("switches") or {}), **{k: v for k, v in more.items() if v is not None}}


def _named(table: str, title: str, values: Mapping[str, Any]) -> list[Block]:
    columns = (Column("name"), Column("value"))
    rows = tuple((str(name), _cell(value)) for name, value in values.items())
    return [Table(table, columns, rows, title)] if rows else []


def _cell(value: Any) -> Cell:
    """A value as it is; what has parts, in words."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
