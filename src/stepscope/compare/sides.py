"""What can be compared: the sides, one class for each kind of result. A side knows where its kind
keeps speeds, phases, memory, settings and machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from stepscope.bench.grid import NO_FIXES
from stepscope.hardware.machine import Machine
from stepscope.hardware.noise_floors import machine_key
from stepscope.record.errors import UsageError
from stepscope.record.timeline import Timeline
from stepscope.results.comparison import (
    Note,
    NoteKind,
    Quantity,
    ResultKind,
    Setting,
    SettingPart,
    SettingValue,
)

Document = Mapping[str, Any]
Records = Sequence[Document]
Settings = dict[Setting, SettingValue]
_Series = tuple[float, ...]
"""Step times of one process, ms."""

BASELINE_ITEM, FIXED_ITEM = "as it is", "with fixes"
_LABELS = {BASELINE_ITEM: "baseline", FIXED_ITEM: "with fixes"}
_WHAT = {"train": "training", "infer": "inference", "generate": "inference"}
_KNOWN = ("training", "inference", "batches")
_LOADER = (
    "batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers",
    "drop_last", "shuffle", "sampler", "dataset", "samples",
)  # fmt: skip
_OPTIMIZER = ("name", "lr", "foreach", "fused", "capturable", "parameters")
_MODEL = ("parameters", "trainable", "dtypes", "memory_format", "compiled", "ddp", "devices")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing with a speed: a run has one, a bench one per point, a tune two."""

    key: str
    """Items of two results with the same key are compared."""
    label: str
    """For readers; "" where a result has only one."""
    series: tuple[_Series, ...]
    """Steady step times by process, ms."""
    samples: float | None
    """Samples per step, on average; None where nothing counts them."""
    what: str | None
    """training, inference or batches; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """One result. `document` is what its kind's `--json` prints; None means not known."""

    kind: ClassVar[ResultKind]
    name: str
    document: Document
    items: tuple[Item, ...]
    timeline: Callable[[], Timeline | None] = lambda: None
    """The recorded window; None where there is none."""
    stacks: Callable[[], Timeline | None] = lambda: None
    """The window recorded with Python stacks."""

    def amount(self, quantity: Quantity) -> float | None:
        """Memory, energy or GPU use."""
        return None

    def phases_ms(self) -> Mapping[str, float] | None:
        """Mean time of each phase, ms per step."""
        return None

    def window(self) -> Document | None:
        """The analysis of the recorded window."""
        return None

    def losses(self) -> list[float | None] | None:
        """Losses by step."""
        return None

    def settings(self) -> Settings:
        """How the program was set up."""
        return {}

    def machine(self) -> Document:
        """Hardware and software as `hardware.describe` gives them."""
        return self.document.get("machine") or {}

    def noise_key(self, item: Item) -> str:
        """What the noise of an item is stored under: by program, whether run or tuned."""
        return f"program {self.program()}"

    def machine_key(self) -> str | None:
        """The machine and device; None where the result does not say."""
        if not self.machine():
            return None
        return machine_key(msgspec.convert(self.machine(), Machine), self._device())

    def program(self) -> str:
        """The program's name without its folder."""
        return _base_name(self.document.get("run") or {}) or ""

    def notes(self) -> Iterator[Note]:
        """What disturbed it."""
        return iter(())

    def environment(self) -> dict[str, SettingValue]:
        """Machine and software, by what each is called."""
        run = self.document.get("run") or self.document.get("versions") or {}
        machine = self.machine()
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

    def _device(self) -> str | None:
        return (self.document.get("run") or {}).get("device")


class RunSide(Side):
    """An observed run."""

    __slots__ = ()
    kind = ResultKind.RUN
    _GPU: ClassVar = {
        Quantity.RESERVED_MEMORY: "peak_reserved_bytes",
        Quantity.ENERGY: "energy_j_per_step",
        Quantity.GPU_BUSY: "busy_fraction",
        Quantity.KERNELS: "kernels_per_step",
    }

    def amount(self, quantity: Quantity) -> float | None:
        if quantity is Quantity.PEAK_MEMORY:
            return _number(self.document["memory"], "peak_bytes")
        return _number(self.document.get("gpu"), self._GPU[quantity])

    def phases_ms(self) -> Mapping[str, float]:
        phases: Mapping[str, float] = self.document["phases_ms"]
        return phases

    def window(self) -> Document | None:
        return self.document.get("timeline")

    def losses(self) -> list[float | None]:
        return list(self.document["losses"])

    def machine(self) -> Document:
        return self.document["config"].get("machine") or {}

    def notes(self) -> Iterator[Note]:
        gpu = self.document.get("gpu") or {}
        cpu = self.machine().get("cpu") or {}
        for reason in gpu.get("throttled_by") or ():
            yield Note(NoteKind.THROTTLED, (self.name,), reason)
        if gpu.get("other_processes"):
            yield Note(NoteKind.GPU_SHARED, (self.name,))
        load, cores = (cpu.get("load_average") or [0.0])[0], cpu.get("usable_cores")
        if cores and load > cores:
            yield Note(NoteKind.HOST_BUSY, (self.name,))

    def settings(self) -> Settings:
        document, config = self.document, self.document["config"]
        found = _program_settings(document["run"])
        for index, loader in enumerate(document.get("loaders") or ()):
            found |= _part(SettingPart.LOADER, index, loader, _LOADER)
        for index, model in enumerate(config.get("models") or ()):
            name = str(model.get("name") or "model")
            found |= _part(SettingPart.MODEL, index, model, _MODEL, name)
        for index, optimizer in enumerate(config.get("optimizers") or ()):
            found |= _part(SettingPart.OPTIMIZER, index, optimizer, _OPTIMIZER)
        switches = {
            **(config.get("switches") or {}),
            **{name: config.get(name) for name in ("autocast", "scaler", "distributed")},
            "compile": len(config.get("compile") or ()) or None,
        }
        found |= _part(SettingPart.SWITCH, 0, switches, tuple(switches))
        fixes = [_fix(fix) for fix in document.get("fixes") or ()]
        found[Setting(SettingPart.FIXES, "fixes")] = _plain(fixes)
        variables = config.get("environment") or {}
        return found | _part(SettingPart.VARIABLE, 0, variables, tuple(variables))


class TraceSide(Side):
    """A recorded window on its own. It does not tell a training from an inference."""

    __slots__ = ()
    kind = ResultKind.TRACE

    def amount(self, quantity: Quantity) -> float | None:
        document = self.document
        if quantity is Quantity.PEAK_MEMORY:
            peaks = [use.get("peak_bytes") for use in document.get("memory") or ()]
            return max((float(peak) for peak in peaks if peak), default=None)
        if quantity is not Quantity.KERNELS or not document["source"]["has"]["device"]:
            return None
        return float(document["launch"]["kernels"] / document["steps"]["count"])

    def window(self) -> Document:
        return self.document

    def machine(self) -> Document:
        return {}

    def environment(self) -> dict[str, SettingValue]:
        source = self.document["source"]
        return {"GPU": source["device"], "tool": source["tool"], "ranks": source["world_size"]}

    def notes(self) -> Iterator[Note]:
        if self.document["steps"].get("how") == "whole":
            yield Note(NoteKind.WHOLE_RECORDING)


class TuneSide(Side):
    """A tune: its amounts are those of the final measurement, with fixes where it has any."""

    __slots__ = ()
    kind = ResultKind.TUNE
    _MEASURED: ClassVar = {
        Quantity.PEAK_MEMORY: "peak_memory_bytes",
        Quantity.ENERGY: "energy_j_per_step",
        Quantity.GPU_BUSY: "gpu_busy",
    }

    def amount(self, quantity: Quantity) -> float | None:
        final = (self.document.get("final") or {}).get("measured") or {}
        measured = final.get("ladder") or self.document.get("baseline") or {}
        return _number(measured, self._MEASURED.get(quantity, ""))

    def losses(self) -> list[float | None]:
        return list((self.document.get("baseline") or {}).get("losses") or ())

    def settings(self) -> Settings:
        fixes = (self.document.get("final") or {}).get("fixes")
        found = _program_settings(self.document.get("run") or {})
        return found | {Setting(SettingPart.FIXES, "fixes"): _plain(fixes)}


class BenchSide(Side):
    """A benchmark. Its amounts are known where it has a single point."""

    __slots__ = ()
    kind = ResultKind.BENCH
    _POINT: ClassVar = {Quantity.PEAK_MEMORY: "peak_memory_bytes", Quantity.GPU_BUSY: "gpu_busy"}

    def amount(self, quantity: Quantity) -> float | None:
        points = list(self.document.get("points") or ())
        return _number(points[0], self._POINT.get(quantity, "")) if len(points) == 1 else None

    def noise_key(self, item: Item) -> str:
        return f"bench {item.key}"

    def _device(self) -> str | None:
        devices = {point["device"] for point in self.document.get("points", ())}
        return "cuda" if "cuda" in devices else None


def merge_items(sides: Sequence[Side]) -> dict[str, Item]:
    """Items of several results by key, their processes together."""
    found: dict[str, Item] = {}
    for item in (item for side in sides for item in side.items):
        before = found.get(item.key)
        if before is None:
            found[item.key] = item
        else:
            found[item.key] = Item(
                item.key, before.label, before.series + item.series,
                before.samples or item.samples, before.what or item.what,
            )  # fmt: skip
    return found


def run_items(document: Document, series: _Series) -> tuple[Item, ...]:
    """A run's only item. Raises UsageError where it has no steady steps."""
    steps = document["steps"]
    if not series:
        name, count = document["run"]["id"], steps["count"]
        raise UsageError(f"run {name} has no steady steps to compare ({count} steps in all)")
    what = steps["what"] if steps["what"] in _KNOWN else None
    return (Item("", "", (series,), steps["samples_per_step"], what),)


def trace_items(document: Document) -> tuple[Item, ...]:
    """The recorded steps of a trace or window."""
    each = document["steps"]["each"]
    series = tuple((one["end_ns"] - one["start_ns"]) / 1e6 for one in each)
    return (Item("", "", (series,), None, None),)


def bench_items(document: Document, records: Records) -> tuple[Item, ...]:
    """One per measured point; without the `records` of its processes, its mean alone."""
    found = []
    for point in document["points"]:
        key = point["key"]
        fine = [one["measured"] for one in records if one["key"] == key and one["status"] == "ok"]
        rows = (one.get("throughput_ms") or one["series_ms"] for one in fine)
        series = tuple(tuple(row) for row in rows if row)
        if not series and point["mean_ms"]:
            series = ((float(point["mean_ms"]),),)
        if series:
            calls = sum(one["calls"] for one in fine)
            counted = sum(one["samples"] for one in fine) / calls if calls else None
            samples = counted or float(point["batch"])
            found.append(Item(key, _label(point), series, samples, _WHAT.get(point["mode"])))
    if not found:
        raise UsageError("nothing in this bench was measured")
    return tuple(found)


def tune_items(document: Document, trials: Records) -> tuple[Item, ...]:
    """The baseline and, where fixes were confirmed, the fixed program; by fresh trials if any.

    `trials` are the journal's; without them each is known by its mean alone.
    """
    final = document.get("final") or {}
    numbers = set(final.get("trials") or ())
    fine = [one for one in trials if one["status"] == "ok" and one["step_ms"] and _for_speed(one)]
    fresh = [one for one in fine if one["number"] in numbers]
    bare = [one for one in fresh or fine if not one["ask"]["fixes"]]
    fixed = [one for one in fresh if one["ask"]["fixes"]]
    measured = final.get("measured") or {}
    found = (
        _tuned(BASELINE_ITEM, bare, measured.get("baseline") or document.get("baseline") or {}),
        _tuned(FIXED_ITEM, fixed, measured.get("ladder") or {}),
    )
    items = tuple(item for item in found if item is not None)
    if not items:
        raise UsageError("nothing in this tune was measured")
    return items


def _for_speed(trial: Document) -> bool:
    """Whether a trial measured speed, and did not record, patch or prove."""
    others = ("window", "perturb", "patched", "seed", "held")
    return not any(trial["ask"].get(name) for name in others)


def _tuned(key: str, trials: Records, measured: Document) -> Item | None:
    if trials:
        first = trials[0]
        series = tuple(tuple(map(float, one["step_ms"])) for one in trials)
        return Item(key, _LABELS[key], series, first["samples_per_step"], first["what"])
    if not measured.get("step_ms"):
        return None
    rate, step_ms = measured.get("samples_per_s"), float(measured["step_ms"])
    samples = rate * step_ms / 1e3 if rate else None
    return Item(key, _LABELS[key], ((step_ms,),), samples, None)


def _label(point: Document) -> str:
    fixes = "" if point["variant"] in ("", NO_FIXES) else f" {point['variant']}"
    return f"{point['model']} {point['mode']} batch {point['batch']} {point['device']}{fixes}"


def _number(document: Document | None, name: str) -> float | None:
    value = (document or {}).get(name)
    return None if value is None else float(value)


def _program_settings(run: Document) -> Settings:
    arguments = " ".join(map(str, run.get("argv") or ())) or None
    return {
        Setting(SettingPart.PROGRAM, "program"): _base_name(run),
        Setting(SettingPart.PROGRAM, "arguments"): arguments,
    }


def _base_name(run: Document) -> str | None:
    program = run.get("program")
    return None if program is None else str(program).replace("\\", "/").rpartition("/")[2]


def _part(
    part: SettingPart, index: int, values: Document, keys: Sequence[str], owner: str = ""
) -> Settings:
    return {Setting(part, key, index, owner): _plain(values.get(key)) for key in keys}


def _fix(fix: Document) -> str:
    value = fix.get("value")
    text = f"{fix['name']}={value}" if value is not None else str(fix["name"])
    return text if fix.get("state") == "applied" else f"{text} ({fix.get('state')})"


def _plain(value: Any) -> SettingValue:
    """One line of text, a number, or None for nothing."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items()) or None
    if isinstance(value, Sequence):
        return ", ".join(str(_plain(one)) for one in value) or None
    return str(value)
