"""What is known about a program when a fix's gain is predicted, and what fixes and rules derive
from it.

Fixes import this inside the program: numpy and the replay are imported in functions only.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    from stepscope.analyze.replay.changes import Change
    from stepscope.analyze.replay.tasks import Tasks
    from stepscope.analyze.run.document import RunSummary
    from stepscope.analyze.timeline.document import TraceAnalysis
    from stepscope.analyze.timeline.host import HostEntry
    from stepscope.analyze.timeline.kernels import Kernel
    from stepscope.analyze.timeline.roofline.rates import OperatorRate
    from stepscope.record import facts
    from stepscope.record.timeline import Column


Changes: TypeAlias = "list[Change] | None"
"""Changes to replay in order; None if a fix changes nothing in the window, or its effect is
unknown."""


class LoaderFacts(TypedDict, total=False):
    """A DataLoader as the program made it."""

    batch_size: int | None
    num_workers: int | None
    samples: int | None
    persistent_workers: bool | None
    drop_last: bool | None


class ModelFacts(TypedDict, total=False):
    """A root model."""

    trainable: int
    dtypes: Mapping[str, int]
    memory_format: str | None
    compiled: bool
    convolved_dims: Sequence[int]
    attends: bool


class OptimizerFacts(TypedDict, total=False):
    """An optimizer that stepped."""

    name: str
    fused: bool | None
    foreach: bool | None


class Switches(TypedDict, total=False):
    """torch's own."""

    threads: int | None
    tf32_matmul: str
    tf32_cudnn: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    deterministic: bool


class CpuFacts(TypedDict, total=False):
    """The processor."""

    model: str | None
    usable_cores: int | None


class GpuFacts(TypedDict, total=False):
    """One GPU."""

    compute_capability: str | None


class MachineFacts(TypedDict, total=False):
    """The machine of a run."""

    cpu: CpuFacts
    gpus: Sequence[GpuFacts]


class DistributedFacts(TypedDict, total=False):
    """The process group of a program with several ranks."""

    local_ranks: int | None


class ProgramConfig(TypedDict, total=False):
    """A program's settings."""

    models: Sequence[ModelFacts]
    optimizers: Sequence[OptimizerFacts]
    switches: Switches
    autocast: str | None
    machine: MachineFacts
    distributed: DistributedFacts | None


class KnownProgram(Protocol):
    """A run or a trace; `diagnose.case.Case` is one."""

    @property
    def show(self) -> "RunSummary | None":
        """The run; None for a trace alone."""

    @property
    def trace(self) -> "TraceAnalysis | None":
        """The window's analysis; None where none was recorded."""

    @property
    def device(self) -> str:
        """cuda or cpu."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The device's limits; empty and None if unknown."""

    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None


def device_limits(known: KnownProgram) -> DeviceLimits:
    """For the GPU, from the roofline; for the CPU, as `doctor` measured them."""
    if known.device != "cpu":
        roofline = known.trace.roofline if known.trace else None
        found = roofline.ceilings if roofline else None
        return DeviceLimits(found.flops_per_s, found.bytes_per_s) if found else DeviceLimits()
    from stepscope.hardware.ceiling_cache import known_ceilings

    cpu = (known.show.config.machine.get("cpu") or {}) if known.show else {}
    model = cpu.get("model")
    measured = (one.ceilings for one in known_ceilings() if model and one.device == model)
    entries = next(measured, {})
    rates = {}
    # Each rate as low, or for fp32 as high, as its spread allows: no promise rests on noise.
    for dtype, sign in (("fp32", 1.0), ("bf16", -1.0)):
        if entry := entries.get(f"matmul_{dtype}_tflops"):
            rates[dtype] = entry.value * max(0.0, 1 + sign * entry.spread) * 1e12
    memory = entries.get("memory_gb_per_s")
    return DeviceLimits(rates, memory.value * 1e9 if memory else None)


def switches(known: KnownProgram) -> "facts.Switches | None":
    """torch's global switches; None for a trace alone, or where no step was taken."""
    return known.show.config.switches if known.show else None


def roofline_rows(known: KnownProgram) -> "list[OperatorRate]":
    """Operators by shape with their time, FLOPs and bytes; empty where not recorded."""
    roofline = known.trace.roofline if known.trace else None
    return roofline.shapes if roofline else []


def kernel_rows(known: KnownProgram) -> "list[Kernel]":
    """Kernels by name."""
    return known.trace.kernels if known.trace else []


def trained_parameters(known: KnownProgram) -> int | None:
    """How many numbers are trained; None where not known."""
    models = known.show.config.models if known.show else []
    return sum(model.trainable or 0 for model in models) or None


def steps_in_window(known: KnownProgram) -> int:
    """Steps in the window, at least 1."""
    return max(1, known.trace.steps.count) if known.trace else 1


def host_operator_rows(known: KnownProgram) -> "list[HostEntry]":
    """The host's operators with most time of their own."""
    return known.trace.host.operators if known.trace and known.trace.host else []


REACHED_SHARE = 0.75  # of a ceiling: what large kernels reach, a prior
LEAST_NS = 2_000.0  # of a kernel: none is shorter
SHORT_NS = 10_000.0
"""Kernels shorter than this are bound by latency, which neither rates nor bytes change."""
LATENCY_STAYS = 0.8  # of such a kernel's time, a prior
RooflineRow: TypeAlias = "OperatorRate"  # an operator with one set of shapes, over the whole window


def time_at_bound(row: "OperatorRate", least_ns: float, rest: float) -> float | None:
    """A row's time if its bound at the ceilings falls to `least_ns`.

    What it takes beyond REACHED of its present bound (small sizes, layout changes, bad tiles)
    shrinks to the share `rest`. None if its present bound is unknown, or nothing is gained.
    """
    now, bound, count = float(row.time_ns), row.least_ns, max(1, row.kernels)
    if bound is None or now <= 0:
        return None
    explained = min(now, bound / REACHED_SHARE)
    stays = rest if now / count >= SHORT_NS else max(rest, LATENCY_STAYS)
    after = max(least_ns / REACHED_SHARE + (now - explained) * stays, LEAST_NS * count)
    return after if after < now else None


def factors_by_operator(
    rows: "Iterable[OperatorRate]", new_time: "Callable[[OperatorRate], float | None]"
) -> dict[str, float]:
    """Each operator's new time over its present one, without unchanged ones.

    `new_time` returns a row's new nanoseconds; None: unchanged.
    """
    before: dict[str, float] = defaultdict(float)
    after: dict[str, float] = defaultdict(float)
    for row in rows:
        time, new = float(row.time_ns), new_time(row)
        before[row.name] += time
        after[row.name] += time if new is None else new
    return {n: after[n] / t for n, t in before.items() if t > 0 and after[n] != t}


def scale_operators(factors: Mapping[str, float]) -> "Change | None":
    """Each operator's kernels take its factor times as long; None where there is none."""
    import numpy as np

    from stepscope.analyze.replay.changes import scale_kernels
    from stepscope.analyze.replay.tasks import select_kernels

    if not factors:
        return None

    def factor(tasks: "Tasks") -> "Column":
        by_name = np.ones(len(tasks.names) + 1)
        for index in set(tasks.work.operator.tolist()):
            if index >= 0:
                by_name[index] = factors.get(tasks.names[index], 1.0)
        times: Column = by_name[tasks.work.operator]
        return times

    return scale_kernels(select_kernels(operator=exact_names_pattern(factors)), factor)


def exact_names_pattern(names: Iterable[str]) -> str:
    """A regular expression that matches exactly these names."""
    return "^(" + "|".join(re.escape(name) for name in sorted(names)) + ")$"


MATRIX_CATEGORIES: Final = ("matmul", "convolution", "attention", "recurrent")
AUTOCAST_CPU_OPERATORS: Final = (
    r"^aten::(mm|addmm|bmm|baddbmm|linear|mkldnn_convolution|convolution_backward)$"
)
"""Operators that autocast runs in bf16 on the processor."""
_NOT_CHAINED: Final = re.compile(
    r"::(sum|mean|amax|amin|max|min|prod|all|any|argmax|argmin|logsumexp|norm|linalg_vector_norm"
    r"|nansum|var|std|var_mean|std_mean|cumsum|ne|isnan|isinf|isfinite|copy_|fill_|zero_)$"
)


def is_pointwise(operator: str) -> bool:
    """Whether an operator computes each number of its result from those at the same place."""
    from stepscope.analyze.timeline.roofline.operator_costs import POINTWISE_FORMULAS

    return operator in POINTWISE_FORMULAS and not _NOT_CHAINED.search(operator)


def pinned_speedup(known: KnownProgram) -> float:
    """How many times faster pinned copies are than the program's: measured, else 1."""
    from stepscope.hardware.ceiling_cache import known_ceilings

    if not known.trace or not any("pageable" in copy.memory for copy in known.trace.copies):
        return 1.0
    name = known.trace.source.device
    for document in known_ceilings():
        entries = document.ceilings
        pinned, pageable = entries.get("h2d_pinned_gb_per_s"), entries.get("h2d_pageable_gb_per_s")
        if document.device == name and pinned and pageable:
            return max(1.0, pinned.value / pageable.value)
    return 1.0


@dataclass(frozen=True, slots=True)
class FusedStep:
    """How many numbers per parameter an optimizer's step reads and writes."""

    passes: int  # fused (SGD: with momentum)
    eager_passes: int
    cpu_share: float  # of the eager time beyond CPU_STEP_MS, on a processor


# By steps of 2 to 150 parameters of 64 to 100,000 numbers, eager and fused in turn, with caches
# cold as after a backward, on an EPYC with 1 and 2 threads (torch 2.13).
FUSED_STEPS: Final[Mapping[str, FusedStep]] = {
    "Adam": FusedStep(7, 18, 0.33),
    "AdamW": FusedStep(7, 20, 0.33),
    "SGD": FusedStep(5, 10, 0.6),
    "Adagrad": FusedStep(5, 10, 0.45),
}
"""Optimizers of torch that have a fused version."""
CPU_STEP_MS: Final = 0.12
"""What a step takes on a processor before it updates anything: few parameters gain nothing."""


def fusible_optimizer(known: KnownProgram) -> str | None:
    """The optimizer if it has an unused fused version; for a trace alone, judged by its kernels.

    Else None.
    """
    if known.show is None:
        groups = known.trace.by.operator if known.trace else []
        names = " ".join(group.name or "" for group in groups)
        if "aten::_foreach_" not in names or "aten::_fused_" in names:
            return None
        return "AdamW" if "_foreach_addcdiv_" in names else "SGD"
    owners = known.show.memory.owners
    stateless = owners.get("optimizer_state") == 0  # SGD without momentum: one pass already
    for one in known.show.config.optimizers:
        plain = one.name == "SGD" and stateless
        if one.name in FUSED_STEPS and not one.fused and not plain:
            return one.name
    return None


def optimizer_calls(known: KnownProgram) -> float:
    """Optimizers' steps in a step of the program, at least 1."""
    steps = known.show.steps if known.show else None
    called = sum(one.count for one in steps.by_optimizer) if steps else 0
    return max(1.0, called / steps.count) if steps and steps.count else 1.0


def threads_lack_cores(known: KnownProgram) -> bool:
    """Whether other processes use cores that torch's threads need: what is shared out among them
    then waits for the last one, however short it is."""
    from stepscope.hardware.process_tree import QUIET_SHARE

    show, switched = known.show, switches(known)
    usable = show.config.usable_cores if show else 0
    if show is None or switched is None or not usable:
        return False
    others = (show.host.other_cpu_percent or 0.0) / 100 if show.host else 0.0
    return others > QUIET_SHARE * usable and usable - others < min(switched.threads, usable)


def optimizer_ms(known: KnownProgram) -> float:
    """The optimizer's time per step: device time, or on the CPU the phase."""
    if known.device == "cpu":
        return known.show.phases_ms.get("optimizer", 0.0) if known.show else 0.0
    groups = known.trace.by.phase if known.trace else []
    spent = sum(group.total_ns for group in groups if group.name == "optimizer")
    return spent / steps_in_window(known) / 1e6


ATTENTION_PRODUCTS: Final = r"^aten::(bmm|baddbmm)$"
_SOFTMAX: Final = r"^aten::_softmax(_backward_data)?$"
_BETWEEN: Final = (
    r"^aten::(_softmax|_softmax_backward_data|masked_fill_?|native_dropout|native_dropout_backward"
    r"|dropout|mul_?|div_?|add_?|where|copy_|bernoulli_)$"
)
_LEAST_WIDTH: Final = 64


def score_rows(rows: "Iterable[OperatorRate]") -> "list[OperatorRate]":
    """Rows over attention's scores, squares at least 64 wide that a softmax is taken of."""
    every = list(rows)
    scores = {
        tuple(dims)
        for row in every
        if re.search(_SOFTMAX, row.name)
        for dims in input_dims(row)
        if len(dims) >= 3 and dims[-1] == dims[-2] >= _LEAST_WIDTH
    }
    widths = {dims[-1] for dims in scores}
    return [row for row in every if _over_scores(row, scores, widths)]


def attention_written_out(known: KnownProgram) -> bool:
    """Whether the processor runs attention written out: two products to each softmax."""
    counts = {o.name: o.count for o in host_operator_rows(known)}
    softmax = counts.get("aten::_softmax", 0)
    return counts.get("aten::bmm", 0) >= 2 * softmax > 0


def input_dims(row: "OperatorRate") -> list[list[int]]:
    """The dimensions of a row's inputs of two or more, as recorded; empty where unreadable."""
    try:
        dims = json.loads(row.shape or "[]")
    except ValueError:
        return []
    whole = [d for d in dims if isinstance(d, list) and all(isinstance(n, int) for n in d)]
    return [d for d in whole if len(d) >= 2]


def _over_scores(row: "OperatorRate", scores: set[tuple[int, ...]], widths: set[int]) -> bool:
    inputs = input_dims(row)
    if not re.search(ATTENTION_PRODUCTS, row.name):
        return bool(re.search(_BETWEEN, row.name)) and any(tuple(d) in scores for d in inputs)
    factors = inputs[-2:]
    if any(dims[-1] == dims[-2] and dims[-1] in widths for dims in factors):
        return True
    # Or it makes a square: a product of [.., T, d] with [.., d, T].
    return len(factors) == 2 and factors[0][-2] == factors[1][-1] and factors[0][-2] in widths
