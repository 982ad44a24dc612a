"""What can be compared: a side is one result, with the speeds, phases, memory, settings and machine
from its document.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct

from stepscope.analyze.run.document import FixReport, ObservedRun, RunSummary
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.analyze.timeline.steps import StepMark
from stepscope.bench.grid import NO_FIXES
from stepscope.bench.record import ProcessRecord, results_of
from stepscope.bench.results import BenchResult, PointSummary
from stepscope.hardware.gpus import GpuInfo
from stepscope.hardware.machine import Machine, TorchBuild
from stepscope.hardware.noise_floors import NoiseFloor, machine_key, program_key
from stepscope.measure.trial.record import TrialRequest
from stepscope.record.errors import UsageError
from stepscope.record.facts import LoaderFact
from stepscope.record.fields import Record
from stepscope.record.fix import FixState
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
from stepscope.results.load import decode
from stepscope.tune.document import Measured, MeasuredBaseline, MeasuredSides, TunedProgram
from stepscope.workloads.measure.record import InferMeasured

Settings = dict[Setting, SettingValue]

BASELINE_ITEM, FIXED_ITEM = "as it is", "with fixes"
_LABELS = {BASELINE_ITEM: "baseline", FIXED_ITEM: "with fixes"}
_WHAT = {"train": "training", "infer": "inference", "generate": "inference"}
_KNOWN = ("training", "inference", "batches")
_LOADER = [n for n in LoaderFact.__annotations__ if n not in ("id", "site", "start_method")]
_SOFTWARE = ("device", "torch", "python", "stepscope", "git")
_OPTIMIZER = ("name", "lr", "foreach", "fused", "capturable", "parameters")
_MODEL = ("parameters", "trainable", "dtypes", "memory_format", "compiled", "ddp", "devices")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing with a speed: a run has one, a bench one per point, a tune two."""

    key: str
    """Items with equal keys are compared."""
    label: str
    """For people; "" if a result has only one."""
    series: tuple[tuple[float, ...], ...]
    """Steady step times by process, ms."""
    samples: float | None
    """Mean samples per step; None if nothing counts them."""
    what: str | None
    """training, inference or batches; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One result; None: unknown."""

    kind: ResultKind
    name: str
    items: tuple[Item, ...]
    program: str = ""
    """The program's file name."""
    device: str | None = None
    machine: Machine | None = None
    environment: Mapping[str, SettingValue] = field(default_factory=dict)
    """Machine and software, by name."""
    settings: Settings = field(default_factory=dict)
    """How the program was set up."""
    amounts: Mapping[Quantity, float | None] = field(default_factory=dict)
    """Memory, energy and GPU use."""
    phases_ms: Mapping[str, float] | None = None
    """Mean time of each phase, ms per step."""
    phases_seen_by: str | None = None
    losses: Sequence[float | None] | None = None
    """By step."""
    window: TraceAnalysis | None = None
    """The analysis of the recorded window."""
    notes: tuple[Note, ...] = ()
    """What disturbed the measurement."""
    noise: NoiseFloor | None = None
    """Its program's noise, as known when the result was made."""
    timeline: Callable[[], Timeline | None] = lambda: None
    """The recorded window, or None."""
    stacks: Callable[[], Timeline | None] = lambda: None
    """The window recorded with Python stacks."""

    def noise_key(self, item: Item) -> str:
        """The key for an item's noise: the program, whether it was run or tuned."""
        if self.kind is ResultKind.BENCH:
            return f"bench {item.key}"
        return program_key(self.program)

    @property
    def machine_key(self) -> str | None:
        """The machine and device; None if the result lacks them."""
        return None if self.machine is None else machine_key(self.machine, self.device)


def merge_items(sides: Sequence[Side]) -> dict[str, Item]:
    """Items of several results by key, with their processes pooled."""
    found: dict[str, Item] = {}
    for item in (item for side in sides for item in side.items):
        first = found.setdefault(item.key, item)
        if first is not item:
            found[item.key] = replace(
                first,
                series=first.series + item.series,
                samples=first.samples or item.samples,
                what=first.what or item.what,
            )
    return found


def run_side(name: str, found: RunSummary, series: tuple[float, ...]) -> Side:
    """An observed run; `series` are its steady steps. Raises UsageError if they took no time."""
    run, steps, gpu = found.run, found.steps, found.gpu
    if not sum(series) > 0:
        raise UsageError(
            f"run {run.id} has no steady steps to compare ({steps.count} steps in all)"
        )
    what = steps.what if steps.what in _KNOWN else None
    amounts: dict[Quantity, float | None] = {Quantity.PEAK_MEMORY: found.memory.peak_bytes}
    if gpu is not None:
        amounts |= {
            Quantity.RESERVED_MEMORY: gpu.peak_reserved_bytes,
            Quantity.ENERGY: gpu.energy_j_per_step,
            Quantity.GPU_BUSY: gpu.busy_fraction,
            Quantity.KERNELS: gpu.kernels_per_step,
        }
    machine = _machine(found.config.machine)
    return Side(
        kind=ResultKind.RUN,
        name=name,
        items=(Item("", "", (series,), steps.samples_per_step, what),),
        program=_base_name(run) or "",
        device=run.device,
        machine=machine,
        environment=_environment(machine, _fields(run, _SOFTWARE)),
        settings=_program_settings(run) | _run_settings(found),
        amounts=amounts,
        phases_ms=found.phases_ms,
        phases_seen_by=found.phases_seen_by,
        losses=found.losses,
        window=found.timeline,
        notes=tuple(_run_notes(name, found, machine or Machine())),
    )


def _run_notes(name: str, found: RunSummary, machine: Machine) -> Iterator[Note]:
    if found.gpu is not None:
        for reason in found.gpu.throttled_by:
            yield Note(NoteKind.THROTTLED, (name,), reason)
        if found.gpu.other_processes:
            yield Note(NoteKind.GPU_SHARED, (name,))
    cores, load = machine.cpu.usable_cores, machine.cpu.load_average
    if cores and load is not None and load[0] > cores:
        yield Note(NoteKind.HOST_BUSY, (name,))


def _run_settings(found: RunSummary) -> Settings:
    config = found.config
    switches = config.switches.to_json() if config.switches else {}
    switches |= {name: getattr(config, name) for name in ("autocast", "scaler", "distributed")}
    switches["compile"] = len(config.compile) or None
    settings: Settings = {}
    for index, loader in enumerate(found.loaders):
        settings |= _part(SettingPart.LOADER, _fields(loader, _LOADER), index)
    for index, model in enumerate(config.models):
        owner = model.name or "model"
        settings |= _part(SettingPart.MODEL, _fields(model, _MODEL), index, owner)
    for index, optimizer in enumerate(config.optimizers):
        settings |= _part(SettingPart.OPTIMIZER, _fields(optimizer, _OPTIMIZER), index)
    settings |= _part(SettingPart.SWITCH, switches)
    settings |= _part(SettingPart.FIXES, {"fixes": [_fix(fix) for fix in found.fixes]})
    return settings | _part(SettingPart.VARIABLE, config.environment)


def _fields(record: object, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(record, name) for name in names}


def _part(
    part: SettingPart, values: Mapping[str, object], index: int = 0, owner: str = ""
) -> Settings:
    return {Setting(part, key, index, owner): _plain(value) for key, value in values.items()}


def _fix(fix: FixReport) -> str:
    text = fix.name if fix.value is None else f"{fix.name}={fix.value}"
    return text if fix.state is FixState.APPLIED else f"{text} ({fix.state})"


def _plain(value: object) -> SettingValue:
    """One line of text, a number, or None for nothing."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Record):
        value = value.to_json()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items()) or None
    if isinstance(value, Sequence):
        return ", ".join(str(_plain(one)) for one in value) or None
    return str(value)


def trace_side(name: str, found: TraceAnalysis) -> Side:
    """A recorded window on its own. Training and inference look the same in it."""
    source, steps = found.source, found.steps
    peaks = [float(use.peak_bytes) for use in found.memory or () if use.peak_bytes]
    kernels = found.launch.kernels / steps.count if source.has.device else None
    series = tuple((one.end_ns - one.start_ns) / 1e6 for one in steps.each)
    return Side(
        kind=ResultKind.TRACE,
        name=name,
        items=(Item("", "", (series,), None, None),),
        environment={"GPU": source.device, "tool": source.tool, "ranks": source.world_size},
        amounts={Quantity.PEAK_MEMORY: max(peaks, default=None), Quantity.KERNELS: kernels},
        window=found,
        notes=(Note(NoteKind.WHOLE_RECORDING),) if steps.how is StepMark.WHOLE else (),
    )


class TrialSpeed(Struct, frozen=True):
    """A trial's speed from the journal of a tune."""

    ask: TrialRequest
    number: int
    status: str
    step_ms: tuple[float, ...] = ()
    samples_per_step: float | None = None
    what: str = "training"

    @property
    def for_speed(self) -> bool:
        """Whether it measured speed only, without recording, patching or proving."""
        ask = self.ask
        other = ask.window or ask.perturb or ask.patched or ask.seed or ask.draws_per_batch
        return self.status == "ok" and bool(self.step_ms) and not other


class TuneFinal(Struct, frozen=True):
    """The confirmed fixes, and the fresh trials that confirmed them."""

    fixes: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()
    measured: MeasuredSides | None = None


class TuneSpeeds(Struct, frozen=True, kw_only=True):
    """The parts of a tune's document that are compared, in any version."""

    run: TunedProgram
    machine: Machine | None = None
    baseline: MeasuredBaseline = MeasuredBaseline()
    final: TuneFinal | None = None


def tune_side(name: str, found: TuneSpeeds, trials: Sequence[TrialSpeed]) -> Side:
    """The baseline and, if fixes were confirmed, the fixed program; by fresh trials if any.

    `trials` are the journal's; without them only means are known. Amounts come from the final
    measurement, with fixes if it has any. Raises UsageError if nothing was measured.
    """
    run, final = found.run, found.final
    sides = None if final is None else final.measured
    fine = [one for one in trials if one.for_speed]
    fresh = [one for one in fine if final is not None and one.number in final.trials]
    bare = [one for one in fresh or fine if not one.ask.fixes]
    items = (
        _tuned(BASELINE_ITEM, bare, sides.baseline if sides else found.baseline),
        _tuned(
            FIXED_ITEM, [one for one in fresh if one.ask.fixes], sides.ladder if sides else None
        ),
    )
    if not any(items):
        raise UsageError("nothing in this tune was measured")
    measured = sides.ladder if sides else found.baseline
    machine = None if found.machine == Machine() else found.machine
    fixes = _part(SettingPart.FIXES, {"fixes": final and final.fixes})
    return Side(
        kind=ResultKind.TUNE,
        name=name,
        items=tuple(item for item in items if item is not None),
        program=_base_name(run) or "",
        device=run.device,
        machine=machine,
        environment=_environment(machine, _fields(run, _SOFTWARE)),
        settings=_program_settings(run) | fixes,
        amounts={
            Quantity.PEAK_MEMORY: measured.peak_memory_bytes,
            Quantity.ENERGY: measured.energy_j_per_step,
            Quantity.GPU_BUSY: measured.gpu_busy,
        },
        losses=found.baseline.losses,
    )


def _tuned(key: str, trials: Sequence[TrialSpeed], measured: Measured | None) -> Item | None:
    if trials:
        series = tuple(one.step_ms for one in trials)
        return Item(key, _LABELS[key], series, trials[0].samples_per_step, trials[0].what)
    if measured is None or not measured.step_ms:
        return None
    rate = measured.samples_per_s
    samples = rate * measured.step_ms / 1e3 if rate else None
    return Item(key, _LABELS[key], ((measured.step_ms,),), samples, None)


def bench_side(name: str, found: BenchResult, records: Sequence[ProcessRecord]) -> Side:
    """An item per measured point; without the `records` of its processes, only its mean.

    Amounts are known if there is a single point. Raises UsageError if nothing was measured.
    """
    items = tuple(
        item
        for point in found.points
        if (item := _point(point, [one for one in records if one.key == point.key])) is not None
    )
    if not items:
        raise UsageError("nothing in this bench was measured")
    machine = _machine(found.machine)
    amounts: dict[Quantity, float | None] = {}
    if len(found.points) == 1:
        (point,) = found.points
        amounts[Quantity.PEAK_MEMORY] = point.peak_memory_bytes
        amounts[Quantity.GPU_BUSY] = point.gpu_busy
    return Side(
        kind=ResultKind.BENCH,
        name=name,
        items=items,
        device="cuda" if any(point.device == "cuda" for point in found.points) else None,
        machine=machine,
        environment=_environment(machine, found.versions),
        amounts=amounts,
    )


def _point(point: PointSummary, records: Sequence[ProcessRecord]) -> Item | None:
    fine = results_of(records)
    rows = ((isinstance(one, InferMeasured) and one.throughput_ms) or one.series_ms for one in fine)
    series = tuple(tuple(row) for row in rows if row)
    if not series and point.mean_ms:
        series = ((point.mean_ms,),)
    if not series:
        return None
    calls = sum(one.calls for one in fine)
    samples = sum(one.samples for one in fine) / calls if calls else 0.0
    fixes = "" if point.variant in ("", NO_FIXES) else f" {point.variant}"
    label = f"{point.model} {point.mode} batch {point.batch} {point.device}{fixes}"
    return Item(point.key, label, series, samples or float(point.batch), _WHAT.get(point.mode))


def _machine(document: Mapping[str, object] | None) -> Machine | None:
    return decode(document, Machine) if document else None


def _environment(
    machine: Machine | None, software: Mapping[str, object]
) -> dict[str, SettingValue]:
    known, told = machine or Machine(), {name: _plain(software.get(name)) for name in _SOFTWARE}
    gpu, build = known.gpus[0] if known.gpus else GpuInfo(), known.torch or TorchBuild("")
    return {
        "GPU": gpu.name,
        "GPUs": len(known.gpus) or None,
        "driver": known.driver,
        "power limit": gpu.power_limit_w,
        "processor": known.cpu.model,
        "cores": known.cpu.usable_cores or None,
        "device": told["device"],
        "torch": told["torch"] or build.version or None,
        "CUDA": build.cuda,
        "Python": told["python"] or known.python,
        "stepscope": told["stepscope"],
        "git": told["git"],
    }


def _program_settings(run: ObservedRun | TunedProgram) -> Settings:
    arguments = " ".join(run.argv or ()) or None
    return _part(SettingPart.PROGRAM, {"program": _base_name(run), "arguments": arguments})


def _base_name(run: ObservedRun | TunedProgram) -> str | None:
    program = (run.script if isinstance(run, ObservedRun) else None) or run.program
    return None if program is None else program.replace("\\", "/").rpartition("/")[2]
