"""Run models under autocast: bfloat16 or float16 where that is safe, float32 elsewhere. Gives way
where the program uses mixed precision of its own.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.analyze.replay.known import (
    AUTOCAST_CPU_OPERATORS,
    MATRIX_CATEGORIES,
    Changes,
    KnownProgram,
    RooflineRow,
    device_limits,
    exact_names_pattern,
    factors_by_operator,
    host_operator_rows,
    roofline_rows,
    scale_operators,
    steps_in_window,
    time_at_bound,
    trained_parameters,
)
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.arithmetic.loss_scaler import LossScaler
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.tensors import map_tensors
from stepscope.fixes.inspect.user_code import calling_frame
from stepscope.record.fix import Applied, Broke, NotApplied, Reason, Target
from stepscope.record.trial import Rejection, RejectReason

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles


def unwatched_autocast() -> Any:
    """torch's autocast for a fix's own use, as it is before it is watched."""
    import torch

    return type("autocast", (torch.autocast,), {"__enter__": torch.autocast.__enter__})


def watch_own_mixed_precision(hands: FixContext, found: Callable[[Reason], None]) -> None:
    """Say `found` when the program turns autocast on or makes a GradScaler.

    What torch's own parts do, such as checkpoints that bring back the autocast they ran under,
    and what stepscope does is not the program's.
    """
    import torch

    folder = torch.__path__[0]

    def entered(call: Any, context: Any) -> Any:
        if getattr(context, "_enabled", False):
            frame = calling_frame(__file__)
            while frame is not None and frame.f_code.co_filename.startswith(f"{folder}/amp/"):
                frame = frame.f_back  # autocast as a decorator
            if frame is not None and not frame.f_code.co_filename.startswith(folder):
                found(Reason.OWN_AUTOCAST)
        return call(context)

    def scaler_made(call: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
        call(scaler, *args, **kwargs)
        if scaler.is_enabled():
            found(Reason.OWN_GRAD_SCALER)

    hands.seams.around(torch.autocast, "__enter__", entered)
    hands.seams.around(torch.amp.GradScaler, "__init__", scaler_made)


_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_STREAMING = ("pointwise", "pooling", "random")
_CASTING_HOST = 1.2  # casts cost forward and backward that much more host time (ResNet-50, H200)
_CAST_BYTES = 12  # of a parameter: read and written to be cast, its gradient too
_WORTH = 1.3  # times faster must bf16 surely be on a processor
_CPU_KEEPS = 0.25  # of an operator there: packing and casting
_ITS_DOING = ("BFloat16", "Half", "bfloat16", "float16", "autocast")


class Amp(Fix):
    """Autocast around every root call; what comes out is float32 again, and so are losses."""

    name = "amp"
    group = "arithmetic"
    title = "run models under autocast in bf16 or fp16"
    kind = FixKind.NUMERIC
    effort = "one line; fp16 a GradScaler too"
    values = ("bf16", "fp16")
    suggested = ("bf16",)
    missing = "no model was called"
    _casting: "_Casting | None" = None

    def parse(self, text: str | None) -> Any:
        return super().parse(text if text is not None else "bf16")

    def applies(self, program: ObservedProgram) -> Rejection | None:
        if own := program.config.get("autocast"):
            return Rejection(RejectReason.OWN_AUTOCAST, str(own))
        dtypes = {dtype for model in program.models for dtype in model["dtypes"]}
        half = dtypes and dtypes <= {*_DTYPES.values()}
        return Rejection(RejectReason.HALF_PRECISION) if half else None

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        return [proposed or ("fp16" if program.lacks_bf16 else "bf16")]

    def tried_with(self, found: frozenset[str], device: str) -> Sequence[tuple[str, ...]]:
        """Convolutions in 16 bits want their channels last, and transpose what is not; and a GPU
        that waits for its launches gains by neither, until those are recorded or compiled away.

        Without channels-last half precision alone shows what it gains, and does not wait for a
        trial that compiles.
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

    def install(self, value: Any, hands: FixContext) -> None:
        casting = self._casting = _Casting(value, hands)
        watch_own_mixed_precision(hands, casting.give_way)
        hands.seams.root_found(casting.found)
        hands.seams.root_called(casting.called)
        casting.scaler.install()

    def explain(self, error: BaseException, line: str) -> Broke | None:
        if self._casting is None or not self._casting.used:
            return None
        its_doing = any(word in str(error) for word in _ITS_DOING)
        if not its_doing or not isinstance(error, RuntimeError | TypeError):
            return None
        return Broke(Reason.NOT_IN_HALF, code=line)

    def edit(self, value: Any, line: str) -> SourceEdit:
        indent = line[: len(line) - len(line.lstrip())]
        context = _autocast_line("cuda", value)
        words = "call the model under autocast, and use .float() on what it returns"
        if value == "fp16":
            words += "; scale the loss with a torch.amp.GradScaler"
        return SourceEdit(words, f"{indent}    {line.lstrip()}", before=(context,))

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        from stepscope.fixes.edit.locate import under_autocast_at

        for cast in applied[:1]:
            if cast.dtype == "bf16":  # float16 takes a loss scale too
                context = _autocast_line(cast.device or "cuda", "bf16")
                yield from under_autocast_at(self, self.edit("bf16", "").words, context, files)

    def trainer_setting(self, value: Any, device: str | None = None) -> dict[str, str]:
        """The trainers take half precision on other devices than the CPU only."""
        return {value: "True"} if value in _DTYPES and device != "cpu" else {}


def _autocast_line(device: str, value: str) -> str:
    return f'with torch.autocast("{device}", dtype=torch.{_DTYPES[value]}):'


def _recurrent_on_cpu(module: Any) -> bool:
    from torch.nn import RNNBase

    on_cpu = all(parameter.is_cpu for parameter in module.parameters())
    return on_cpu and any(isinstance(part, RNNBase) for part in module.modules())


def _first_parameter(module: Any) -> tuple[Any, str]:
    """The part that has it, and its name there: another may take its place, or none."""
    parts = ((part, name) for part in module.modules() for name in part._parameters)
    return next((part, name) for part, name in parts if part._parameters[name] is not None)


class _Casting:
    """Which models run under autocast, and in what."""

    def __init__(self, value: str, hands: FixContext) -> None:
        import torch

        self._hands = hands
        self._autocast = unwatched_autocast()
        self._value = value
        self._off = False
        self._graphed = "cuda_graph" in hands.seams.core.options.fixes
        self._models: dict[int, tuple[Any, str]] = {}  # where each has its first parameter
        self._scaled: set[int] = set()
        self._bf16: bool | None = None
        self._said: set[tuple[int, str, str]] = set()
        self.scaler = LossScaler(hands)
        self.scaler.possible = value == "fp16" or torch.cuda.device_count() > 0
        self.used = False

    def give_way(self, reason: Reason) -> None:
        """The program has mixed precision of its own: from now on only that."""
        self._off = True
        self.scaler.active = self.scaler.possible = False
        self._hands.not_applied(NotApplied(reason, place=self._hands.place()))

    def found(self, module: Any) -> None:
        """Look at a model's parameters before its first call."""
        import torch

        name = type(module).__qualname__
        dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
        halves = dtypes & {torch.float16, torch.bfloat16}
        refused = None
        if halves:
            dtype = str(halves.pop()).removeprefix("torch.")
            place = self._hands.place()
            refused = NotApplied(Reason.HALF_ALREADY, object=name, place=place, value=dtype)
        elif torch.float32 not in dtypes:
            refused = NotApplied(Reason.NO_FLOAT32, object=name)
        elif self._value == "fp16" and _recurrent_on_cpu(module):
            refused = NotApplied(Reason.RECURRENT_ON_CPU, object=name)
        if refused is not None:
            self._hands.not_applied(refused)
        else:
            self._models[id(module)] = _first_parameter(module)

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """A call under autocast, unless the program's own is on."""
        import torch

        if self._off or id(module) not in self._models:
            return call(module, *args, **kwargs)
        part, name = self._models[id(module)]
        first = part._parameters.get(name)
        device = (next(module.parameters()) if first is None else first).device.type
        if torch.is_autocast_enabled(device):
            return call(module, *args, **kwargs)
        value = self._suited(device)
        if value == "fp16" and self._graphed:
            self._hands.not_applied(NotApplied(Reason.FP16_IN_GRAPH))
            return call(module, *args, **kwargs)
        dtype = getattr(torch, _DTYPES[value])
        self._say(module, device, value)
        if value == "fp16" and torch.is_grad_enabled():
            self._prepare_scaling(module, args, kwargs)
        with self._autocast(device, dtype=dtype):
            result = call(module, *args, **kwargs)
        return map_tensors(
            result, lambda tensor: tensor.float() if tensor.dtype == dtype else tensor
        )

    def _suited(self, device: str) -> str:
        """bf16 only where the device computes in it rather than emulating it."""
        import torch

        if self._value == "fp16" or device != "cuda":
            return self._value
        if self._bf16 is None:
            self._bf16 = bool(torch.cuda.is_bf16_supported(including_emulation=False))
            self.scaler.possible = not self._bf16
        return "bf16" if self._bf16 else "fp16"

    def _prepare_scaling(self, module: Any, args: Any, kwargs: Any) -> None:
        """From now on backwards are scaled; leaves among the inputs get gradients too."""
        import torch

        self.scaler.active = True
        if id(module) not in self._scaled:
            self._scaled.add(id(module))
            self.scaler.leaves.add(module.parameters())
        given = (*args, *kwargs.values())
        self.scaler.leaves.add(value for value in given if isinstance(value, torch.Tensor))

    def _say(self, module: Any, device: str, value: str) -> None:
        said = (id(module), device, value)
        if said in self._said:
            return
        self._said.add(said)
        self.used = True
        self._hands.applied(
            Applied(
                Target.AUTOCAST,
                type(module).__qualname__,
                dtype=value,
                device=device,
                remark=value != self._value,
            )
        )


def _predict(dtype: str, known: KnownProgram) -> Changes:
    from stepscope.analyze.replay.changes import scale_host
    from stepscope.analyze.replay.tasks import select_host

    limits = device_limits(known)
    rate, memory = limits.flops_per_s.get(dtype), limits.bytes_per_s
    if rate is None or memory is None:
        return None
    rows = roofline_rows(known)
    in_images = _time(rows, "convolution") > _time(rows, "matmul")

    def new_time(row: RooflineRow) -> float | None:
        if row.dtype not in ("fp32", "tf32") or not row.bytes:
            return None
        least = row.bytes / 2 / memory * 1e9
        if row.category in MATRIX_CATEGORIES:
            return time_at_bound(row, max(row.flops / rate * 1e9, least), 0.5)
        streams = row.category in _STREAMING or "batch_norm" in row.name
        kept = not in_images and re.search(r"::add_?$", row.name)  # the residual stays fp32
        return time_at_bound(row, least, 0.5) if streams and not kept else None

    factors = factors_by_operator(rows, new_time)
    if not any(row.name in factors for row in rows if row.category in MATRIX_CATEGORIES):
        return None
    _add_casts(factors, rows, known, memory)
    change = scale_operators(factors)
    assert change is not None
    on_host = [scale_host(select_host(phase=p), _CASTING_HOST) for p in ("forward", "backward")]
    return [change, *on_host]


def _predict_on_cpu(dtype: str, known: KnownProgram) -> Changes:
    """Only where `doctor` measured that this processor is surely faster in bf16."""
    from stepscope.analyze.replay.changes import scale_host
    from stepscope.analyze.replay.tasks import select_host

    rates = device_limits(known).flops_per_s
    fast, slow = rates.get(dtype), rates.get("fp32")
    if not fast or not slow or fast < _WORTH * slow or _autocasts(known):
        return None
    names = {o.name for o in host_operator_rows(known) if re.search(AUTOCAST_CPU_OPERATORS, o.name)}
    factor = _CPU_KEEPS + (1 - _CPU_KEEPS) * slow / fast
    return [scale_host(select_host(operator=exact_names_pattern(names)), factor)] if names else None


def _autocasts(known: KnownProgram) -> bool:
    return known.show is not None and known.show.config.autocast is not None


def _time(rows: list[RooflineRow], category: str) -> float:
    return float(sum(row.time_ns for row in rows if row.category == category))


def _add_casts(
    factors: dict[str, float], rows: list[RooflineRow], known: KnownProgram, memory: float
) -> None:
    """Casting parameters and gradients, spread over the products that need it."""
    trained = trained_parameters(known) or 0
    extra = trained * _CAST_BYTES / memory * 1e9 * steps_in_window(known)
    matrix = [row for row in rows if row.category in MATRIX_CATEGORIES]
    whole = sum(row.time_ns for row in matrix)
    for name in {row.name for row in matrix} if whole else ():
        factors[name] = factors.get(name, 1.0) + extra / whole


FIX = Amp()
