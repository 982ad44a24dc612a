"""How two sides differ in what they were told to do, and in where they did it."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.compare.items import Document, Side

Difference = dict[str, Any]
_LOADER = (
    "batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers",
    "drop_last", "shuffle", "sampler", "dataset", "samples",
)  # fmt: skip
_OPTIMIZER = ("name", "lr", "foreach", "fused", "capturable", "parameters")
_MODEL = ("parameters", "trainable", "dtypes", "memory_format", "compiled", "ddp", "devices")


def setting_differences(base: Sequence[Side], other: Sequence[Side]) -> list[Difference]:
    """`what`, `base`, `other` of each setting that differs between the first results of each; of
    results of different kinds only what both tell of."""
    ours, theirs = _configured(base[0]), _configured(other[0])
    if base[0].kind != other[0].kind:
        both = ours.keys() & theirs.keys()
        ours, theirs = ({n: v for n, v in one.items() if n in both} for one in (ours, theirs))
    return _differences(ours, theirs)


def environment_differences(
    base: Sequence[Side], other: Sequence[Side]
) -> tuple[list[Difference], list[str]]:
    """What differs in machine and software, and the names of what is the same."""
    ours, theirs = _surroundings(base[0]), _surroundings(other[0])
    same = [name for name in ours if theirs.get(name) == ours[name] and ours[name] is not None]
    return _differences(ours, theirs), same


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    """None stands for not there; what is known of one side only is told of too."""
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [
        {"what": name, "base": ours.get(name), "other": theirs.get(name)}
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def _configured(side: Side) -> dict[str, Any]:
    if side.kind == "bench":
        return {}
    if side.kind == "tune":
        run = side.document.get("run") or {}
        fixes = (side.document.get("final") or {}).get("fixes")
        return {"program": _name(run), "arguments": _argv(run), "fixes": _plain(fixes)}
    return _run(side.document) if side.kind == "run" else {}


def _run(document: Document) -> dict[str, Any]:
    config = document["config"]
    run = document["run"]
    found: dict[str, Any] = {"program": _name(run), "arguments": _argv(run)}
    for place, loader in enumerate(document.get("loaders") or ()):
        found |= _part("loader", place, loader, _LOADER)
    for place, model in enumerate(config.get("models") or ()):
        found |= _part(str(model.get("name") or "model"), place, model, _MODEL)
    for place, optimizer in enumerate(config.get("optimizers") or ()):
        found |= _part("optimizer", place, optimizer, _OPTIMIZER)
    found |= {name: _plain(value) for name, value in (config.get("switches") or {}).items()}
    found |= {name: _plain(config.get(name)) for name in ("autocast", "scaler", "distributed")}
    found["compile"] = len(config.get("compile") or ()) or None
    found["fixes"] = _plain([_fix(fix) for fix in document.get("fixes") or ()])
    variables = config.get("environment") or {}
    return found | {name: _plain(value) for name, value in variables.items()}


def _part(name: str, place: int, values: Document, kept: Sequence[str]) -> dict[str, Any]:
    title = name if place == 0 else f"{name} {place + 1}"
    return {f"{title} {key}": _plain(values.get(key)) for key in kept}


def _fix(fix: Document) -> str:
    value = fix.get("value")
    text = f"{fix['name']}={value}" if value is not None else str(fix["name"])
    return text if fix.get("state") == "applied" else f"{text} ({fix.get('state')})"


def _surroundings(side: Side) -> dict[str, Any]:
    document = side.document
    if side.kind == "trace":
        source = document["source"]
        return {"GPU": source["device"], "tool": source["tool"], "ranks": source["world_size"]}
    run = document.get("run") or document.get("versions") or {}
    machine = document["config"].get("machine") if side.kind == "run" else document.get("machine")
    machine = machine or {}
    gpus, cpu = machine.get("gpus") or (), machine.get("cpu") or {}
    build = machine.get("torch") or {}
    return {
        "GPU": gpus[0].get("name") if gpus else None,
        "GPUs": len(gpus) or None,
        "driver": machine.get("driver"),
        "power limit": gpus[0].get("power_limit_w") if gpus else None,
        "processor": cpu.get("model"),
        "cores": cpu.get("usable_cores"),
        "device": run.get("device"),
        "torch": run.get("torch") or build.get("version"),
        "CUDA": build.get("cuda"),
        "Python": run.get("python") or machine.get("python"),
        "stepscope": run.get("stepscope"),
        "git": run.get("git"),
    }


def _name(run: Document) -> str | None:
    """Of the program without its folder."""
    program = run.get("program")
    return None if program is None else str(program).replace("\\", "/").rpartition("/")[2]


def _argv(run: Document) -> str | None:
    return " ".join(map(str, run.get("argv") or ())) or None


def _plain(value: Any) -> Any:
    """One line of text, a number, or None for nothing."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items()) or None
    if isinstance(value, Sequence):
        return ", ".join(str(_plain(one)) for one in value) or None
    return str(value)
