"""Run models under autocast: bfloat16 or float16 where that is safe, float32 elsewhere. Gives way
if the program uses mixed precision itself."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.analyze.replay import known as replay
from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, unsuitable
from stepscope.fixes.arithmetic.loss_scaler import LossScaler
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.edit.source import indented
from stepscope.fixes.inspect import devices
from stepscope.fixes.inspect.models import parameters_of
from stepscope.fixes.inspect.tensors import map_tensors
from stepscope.fixes.inspect.user_code import calling_frame
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.record.fix import Applied, Broke, NotApplied, Reason, Switch, Target
from stepscope.record.trial import Rejection

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles


USES_AUTOCAST = Reason("own_autocast", "the program uses autocast ({detail})")
HALF_PRECISION = Reason("half_precision", "the model is in half precision")
AUTOCAST = Target("autocast", "{object} in {dtype} on {device}", ", as this device has no bf16")
OWN_AUTOCAST = Reason("own_autocast", "the program uses mixed precision itself: autocast{at}")
OWN_GRAD_SCALER = Reason(
    "own_grad_scaler", "the program uses mixed precision itself: a GradScaler{at}"
)
HALF_ALREADY = Reason("half_already", "{object}, called{at}, is already in {value}")
NO_FLOAT32 = Reason("no_float32", "{object} has no parameters in float32")
RECURRENT_ON_CPU = Reason(
    "recurrent_on_cpu", "{object} has recurrent layers, which the CPU lacks in fp16: use bf16"
)
FP16_IN_GRAPH = Reason("fp16_in_graph", "fp16 skips steps that overflow, which a CUDA graph cannot")
NOT_IN_HALF = Reason(
    "not_in_half", "`{code}` does not support half precision; pass it .float(), or drop amp"
)


def unwatched_autocast() -> Any:
    """torch's original autocast, for a fix's own use."""
    return type("autocast", (torch.autocast,), {"__enter__": torch.autocast.__enter__})


def watch_own_mixed_precision(context: FixContext, found: Callable[[Reason], None]) -> None:
    """Call `found` when the program turns autocast on or makes a GradScaler. Use by torch itself,
    such as checkpoints that restore their autocast, or by stepscope does not count."""
    folder = torch.__path__[0]

    def entered(call: Any, autocast: Any) -> Any:
        if getattr(autocast, "_enabled", False):
            frame = calling_frame(__file__)
            while frame is not None and frame.f_code.co_filename.startswith(f"{folder}/amp/"):
                frame = frame.f_back  # autocast as a decorator
            if frame is not None and not frame.f_code.co_filename.startswith(folder):
                found(OWN_AUTOCAST)
        return call(autocast)

    def scaler_made(call: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        call(scaler, *args, **kwargs)
        if scaler.is_enabled():
            found(OWN_GRAD_SCALER)

    context.watching.around(torch.autocast, "__enter__", entered)
    context.watching.around(torch.amp.GradScaler, "__init__", scaler_made)


_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_STREAMING = ("pointwise", "pooling", "random")
_CASTING_HOST = 1.2  # casts add this much host time to forward and backward (ResNet-50, H200)
_CAST_BYTES = 12  # of a parameter: read and written to be cast, its gradient too
_WORTH = 1.3  # how many times faster bf16 must surely be on a CPU
_CPU_KEEPS = 0.25  # of an operator there: packing and casting
_MOST_WRAPPERS = 32  # looked through around a forward
_ITS_DOING = ("BFloat16", "Half", "bfloat16", "float16", "autocast")


class Amp(Fix):
    """Autocast around every root call; outputs, and so losses, are float32 again."""

    name = "amp"
    group = "arithmetic"
    title = "run models under autocast in bf16 or fp16"
    kind = FixKind.NUMERIC
    effort = "one line; fp16 a GradScaler too"
    switch = Switch.AT_STEP
    values = ("bf16", "fp16")
    default = "bf16"
    suggested = ("bf16",)
    missing = "no model was called"
    _casting: "_Casting | None" = None

    def applies(self, program: ObservedProgram) -> Rejection | None:
        if own := program.config.get("autocast"):
            return unsuitable(USES_AUTOCAST, str(own))
        dtypes = {dtype for model in program.models for dtype in model["dtypes"]}
        return unsuitable(HALF_PRECISION) if dtypes and dtypes <= {*_DTYPES.values()} else None

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        return [proposed or ("fp16" if program.lacks_bf16 else "bf16")]

    def tried_with(self, found: frozenset[str], device: str) -> Sequence[tuple[str, ...]]:
        """16-bit convolutions want channels last and transpose other inputs; a launch-bound GPU
        gains from neither until launches are captured or compiled away.

        Without channels-last, half precision is tried alone first and does not wait for a trial
        that compiles.
        """
        if "channels_last" not in found:
            return [("cuda_graph",)]
        sets = [("channels_last",), ("channels_last", "cuda_graph")]
        return [*sets, ("channels_last", "compile")] if device == "cuda" else sets

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Autocast: products at the rate of `value` and half the bytes, what streams beside them
        too. Softmax, layer norms and losses stay in fp32."""
        dtype = value or "bf16"
        return _predict_on_cpu(dtype, known) if known.device == "cpu" else _predict(dtype, known)

    def rounding(self, value: str) -> str:
        return _DTYPES["fp16" if value == "fp16" else "bf16"]

    def check(self, live: LiveProgram) -> NotApplied | None:
        if live.autocast:
            return NotApplied(OWN_AUTOCAST)
        if live.scaler:
            return NotApplied(OWN_GRAD_SCALER)
        return refused_by_all(_refused(one.module, str(self.default)) for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        casting = self._casting = _Casting(value, context)
        watch_own_mixed_precision(context, casting.give_way)
        context.root_found(casting.found)
        context.seams.root_called(casting.called)
        context.when_switched(casting.switched)
        casting.scaler.install()

    def explain(self, error: BaseException, line: str) -> Broke | None:
        used = self._casting is not None and self._casting.said
        its_doing = any(word in str(error) for word in _ITS_DOING)
        if not used or not its_doing or not isinstance(error, RuntimeError | TypeError):
            return None
        return Broke(NOT_IN_HALF, code=line)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return self.edit_on("cuda", value, line)

    def edit_on(self, device: str, value: Any, line: str) -> SourceEdit:
        words = "call the model under autocast, and use .float() on what it returns"
        if value == "fp16":
            words += "; scale the loss with a torch.amp.GradScaler"
        return SourceEdit(words, indented(line), before=(_autocast_line(device, value),))

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        from stepscope.fixes.edit.locate import rewritten
        from stepscope.fixes.edit.statements import under_autocast

        if applied and applied[0].dtype == "bf16":  # float16 needs a loss scale too
            write = partial(under_autocast, _autocast_line(applied[0].device or "cuda", "bf16"))
            calls = files.sites("forward", "evaluation")
            yield from rewritten(self, self.edit("bf16", "").words, calls, files, write)

    def trainer_setting(self, value: Any, device: str | None = None) -> dict[str, str]:
        """Trainers accept half precision only on devices other than the CPU."""
        return {value: "True"} if value in _DTYPES and device != "cpu" else {}


def _autocast_line(device: str, value: str) -> str:
    return f'with torch.autocast("{device}", dtype=torch.{_DTYPES[value]}):'


class _Casting:
    """Which models run under autocast, and in what."""

    def __init__(self, value: str, context: FixContext) -> None:
        self._context = context
        self._autocast = unwatched_autocast()
        self._value = value
        self._off = False
        self._graphed = "cuda_graph" in context.seams.core.fixes
        self._models: dict[int, tuple[Any, str]] = {}
        """The module that holds a model's first parameter, and its name there: it may be replaced
        or removed."""
        self._scaled: set[int] = set()
        self._bf16: bool | None = None
        self.said: set[tuple[int, str, str]] = set()
        """What ran under autocast."""
        self.scaler = LossScaler(context)
        self.scaler.possible = value == "fp16" or devices.cuda_here()

    def give_way(self, reason: Reason) -> None:
        """The program uses mixed precision itself: from now on only that applies."""
        self._off = True
        self.scaler.active = self.scaler.possible = False
        self._context.not_applied(NotApplied(reason, place=self._context.place()))

    def switched(self, on: bool) -> None:
        """Off, nothing of a model's is hooked any more."""
        if not on:
            self._scaled.clear()

    def found(self, module: Any) -> None:
        """Look at a model's parameters before its first call."""
        refused = _refused(module, self._value)
        if refused is not None:
            placed = refused.reason == HALF_ALREADY
            record = replace(refused, place=self._context.place()) if placed else refused
            self._context.not_applied(record)
        else:
            own = torch.nn.Module.named_parameters  # which the program's class may override
            parts = ((one, name) for one in module.modules() for name, _ in own(one, recurse=False))
            self._models[id(module)] = next(parts)

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """A call under autocast, unless the program's own is on."""
        if self._off or id(module) not in self._models:
            return call(module, *args, **kwargs)
        part, name = self._models[id(module)]
        first = getattr(part, name, None)
        device = (next(parameters_of(module)) if first is None else first).device.type
        if torch.is_autocast_enabled(device):
            return call(module, *args, **kwargs)
        value = self._value
        if value == "bf16" and device == "cuda":
            if self._bf16 is None:  # whether the device supports it natively
                self._bf16 = bool(torch.cuda.is_bf16_supported(including_emulation=False))
                self.scaler.possible = not self._bf16
            value = "bf16" if self._bf16 else "fp16"
        if value == "fp16" and self._graphed:
            self._context.not_applied(NotApplied(FP16_IN_GRAPH))
            return call(module, *args, **kwargs)
        dtype = getattr(torch, _DTYPES[value])
        if (id(module), device, value) not in self.said:
            self.said.add((id(module), device, value))
            name, other = type(module).__qualname__, value != self._value
            record = Applied(AUTOCAST, name, dtype=value, device=device, remark=other)
            self._context.applied(record)
        if value == "fp16" and torch.is_grad_enabled():  # from now on backwards are scaled
            self.scaler.active = True
            if id(module) not in self._scaled:
                self._scaled.add(id(module))
                self.scaler.leaves.add(parameters_of(module))
            given = (*args, *kwargs.values())  # leaves among the inputs get gradients too
            self.scaler.leaves.add(one for one in given if isinstance(one, torch.Tensor))
        with self._autocast(device, dtype=dtype):
            result = call(module, *args, **kwargs)
        return map_tensors(result, lambda one: one.float() if one.dtype == dtype else one)


def _refused(module: Any, value: str) -> NotApplied | None:
    """Why a model does not run under autocast; None where it does."""
    name = type(module).__qualname__
    dtypes = {p.dtype for p in parameters_of(module) if p.is_floating_point()}
    halves = dtypes & {torch.float16, torch.bfloat16}
    recurrent = any(isinstance(part, torch.nn.RNNBase) for part in module.modules())
    if _runs_under_autocast(module):
        return NotApplied(OWN_AUTOCAST)
    if halves:
        dtype = str(halves.pop()).removeprefix("torch.")
        return NotApplied(HALF_ALREADY, object=name, value=dtype)
    if torch.float32 not in dtypes:
        return NotApplied(NO_FLOAT32, object=name)
    if value == "fp16" and recurrent and all(p.is_cpu for p in parameters_of(module)):
        return NotApplied(RECURRENT_ON_CPU, object=name)
    return None


def _runs_under_autocast(module: Any) -> bool:
    """Whether autocast decorates a model's forward, as accelerate has it."""
    waiting, seen = [module.forward], 0
    while waiting and seen < _MOST_WRAPPERS:
        one, seen = waiting.pop(), seen + 1
        if isinstance(one, torch.autocast):
            if getattr(one, "_enabled", False):
                return True
            continue
        function = getattr(one, "__func__", one)
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # an empty one
                waiting.append(cell.cell_contents)
        inner = (getattr(function, name, None) for name in ("__wrapped__", "model_forward", "func"))
        waiting += [each for each in inner if each is not None]
    return False


def _predict(dtype: str, known: KnownProgram) -> Changes:
    limits = replay.device_limits(known)
    rate, memory = limits.flops_per_s.get(dtype), limits.bytes_per_s
    if rate is None or memory is None:
        return None
    rows = replay.roofline_rows(known)
    matrix = [row for row in rows if row.category in replay.MATRIX_CATEGORIES]
    kinds = ("convolution", "matmul")
    convolving, multiplying = (sum(r.time_ns for r in rows if r.category == k) for k in kinds)
    in_images = convolving > multiplying

    def new_time(row: replay.RooflineRow) -> float | None:
        if row.dtype not in ("fp32", "tf32") or not row.bytes:
            return None
        least = row.bytes / 2 / memory * 1e9
        if row.category in replay.MATRIX_CATEGORIES:
            return replay.time_at_bound(row, max(row.flops / rate * 1e9, least), 0.5)
        streams = row.category in _STREAMING or "batch_norm" in row.name
        kept = not in_images and re.search(r"::add_?$", row.name)  # the residual stays fp32
        return replay.time_at_bound(row, least, 0.5) if streams and not kept else None

    factors = replay.factors_by_operator(rows, new_time)
    if not any(row.name in factors for row in matrix):
        return None
    trained = replay.trained_parameters(known) or 0
    casts = trained * _CAST_BYTES / memory * 1e9 * replay.steps_in_window(known)
    whole = sum(row.time_ns for row in matrix)
    for name in {row.name for row in matrix} if whole else ():  # that need them
        factors[name] = factors.get(name, 1.0) + casts / whole
    change = replay.scale_operators(factors)
    assert change is not None
    on_host = [tasks.select_host(phase=phase) for phase in ("forward", "backward")]
    return [change, *(changes.scale_host(one, _CASTING_HOST) for one in on_host)]


def _predict_on_cpu(dtype: str, known: KnownProgram) -> Changes:
    """Only where `doctor` measured that this processor is surely faster in bf16."""
    rates = replay.device_limits(known).flops_per_s
    fast, slow = rates.get(dtype), rates.get("fp32")
    autocasts = known.show is not None and known.show.config.autocast is not None
    if not fast or not slow or fast < _WORTH * slow or autocasts:
        return None
    every = {row.name for row in replay.host_operator_rows(known)}
    names = {name for name in every if re.search(replay.AUTOCAST_CPU_OPERATORS, name)}
    if not names:
        return None
    products = tasks.select_host(operator=replay.exact_names_pattern(names))
    return [changes.scale_host(products, _CPU_KEEPS + (1 - _CPU_KEEPS) * slow / fast)]


FIX = Amp()
