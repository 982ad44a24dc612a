"""Let float32 products and convolutions run in TF32 on the tensor cores, or keep them from it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

from stepscope.analyze.replay import known as replay
from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.inspect.models import parameters_of
from stepscope.fixes.lazy import torch
from stepscope.record.fix import Applied, NotApplied, Reason, Switch, Target
from stepscope.record.trial import Rejection

_OFF = (False, "ieee", "highest")
_ON = (True, "tf32", "high", "medium")
_NEEDED = (8, 0)
TF32 = Target("tf32", "{object}, TF32 {after}")
TF32_SETTING = Target("tf32_setting", "over the program's own setting at {overrides}")
NOT_ON_CUDA = Reason("not_on_cuda", "{object} is not on a CUDA device")
NO_TF32 = Reason("no_tf32", "{object} has no TF32")


class Tf32(Fix):
    """float32 in memory, fewer digits inside a product: up to eight times the rate."""

    name = "tf32"
    group = "arithmetic"
    title = "run float32 matmuls and convolutions in TF32, or not"
    kind = FixKind.NUMERIC
    effort = "two lines"
    edited_at_top = True
    needs = "cuda"
    switch = Switch.AT_STEP
    values = ("on", "off")
    default = "on"
    suggested = ("on",)
    missing = "no model ran on a CUDA device"

    def applies(self, program: ObservedProgram) -> Rejection | None:
        products = program.switches.get("tf32_matmul") in ("high", "medium")
        on = products and program.switches.get("tf32_cudnn")
        return unsuitable(ALREADY_ON) if on else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Products that are now done in fp32 at the rate of TF32; None where there are none."""
        limits = replay.device_limits(known)
        rate, memory = limits.flops_per_s.get("tf32"), limits.bytes_per_s
        if value == "off" or known.device == "cpu" or rate is None or memory is None:
            return None

        def new_time(row: replay.RooflineRow) -> float | None:
            product = row.dtype == "fp32" and row.category in replay.MATRIX_CATEGORIES
            if not product or not row.bytes:
                return None
            return replay.time_at_bound(row, max(row.flops / rate, row.bytes / memory) * 1e9, 0.8)

        factors = replay.factors_by_operator(replay.roofline_rows(known), new_time)
        change = replay.scale_operators(factors)
        return None if change is None else [change]

    def rounding(self, value: str) -> str:
        return "tfloat32"

    def check(self, live: LiveProgram) -> NotApplied | None:
        return refused_by_all(_refused(one.module) for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        switch = _Switch(value == "on", context)
        context.when_switched(switch.turn)
        switch.keep()
        context.root_found(switch.said_of)

    def edit(self, value: Any, line: str) -> SourceEdit:
        on = value == "on"
        return SourceEdit(
            f"put these lines at the beginning, to turn TF32 {value}",
            before=(
                f'torch.set_float32_matmul_precision("{"high" if on else "highest"}")',
                f"torch.backends.cudnn.allow_tf32 = {on}",
            ),
        )


class _Switch:
    """TF32's switches, set one way; the fix wins over what the program sets later, and says so."""

    def __init__(self, on: bool, context: FixContext) -> None:
        self._on = on
        self._context = context
        self._setting = False
        self._before: list[tuple[Callable[[Any], None], Any]] = []  # what the program has set

    def turn(self, on: bool) -> None:
        """Set the switches this fix's way, or as the program has them."""
        self._setting = True
        try:
            if on:
                self._before = [*_settings()]
                self._set()
                return
            for put, value in self._before:
                put(value)
        finally:
            self._setting = False

    @contextmanager
    def _as_the_program_has_it(self) -> Iterator[None]:
        """For a setting of the program's own, which is kept for when the fix goes off."""
        self.turn(False)
        try:
            yield
        finally:
            self.turn(True)

    def _set(self) -> None:
        """The older switches, then the newer ones to the same: torch raises when it is asked for
        one of them and they differ."""
        torch.set_float32_matmul_precision("high" if self._on else "highest")
        torch.backends.cudnn.allow_tf32 = self._on
        for operations in _newer_switches():
            operations.fp32_precision = "tf32" if self._on else "ieee"

    def keep(self) -> None:
        """Notice whatever way the program sets them."""
        around, backends = self._context.seams.around, torch.backends
        switches = [
            vars(type(module)).get(name)
            for module in (backends, backends.cudnn)
            for name in ("allow_tf32", "fp32_precision")
        ]

        def precision_set(call: Any, precision: str) -> None:
            self._overrule(precision, lambda: call(precision))

        def attribute_set(call: Any, owner: Any, name: str, value: Any) -> None:
            if name in ("allow_tf32", "fp32_precision"):
                self._overrule(value, lambda: call(owner, name, value))
            else:
                call(owner, name, value)

        def property_set(call: Any, switch: Any, owner: Any, value: Any) -> None:
            if any(switch is known for known in switches):
                self._overrule(value, lambda: call(switch, owner, value))
            else:
                call(switch, owner, value)

        around(import_module("torch"), "set_float32_matmul_precision", precision_set)
        around(type(backends.cuda.matmul), "__setattr__", attribute_set)
        if hasattr(backends, "_FP32Precision"):
            around(backends._FP32Precision, "__setattr__", attribute_set)
        around(type(vars(type(backends.cudnn))["allow_tf32"]), "__set__", property_set)

    def said_of(self, module: Any) -> None:
        """Say what it means for a model that is about to run."""
        refused = _refused(module)
        if refused is not None:
            self._context.not_applied(refused)
        else:
            name, after = type(module).__qualname__, "on" if self._on else "off"
            self._context.applied(Applied(TF32, name, after=after))

    def _overrule(self, value: Any, call: Callable[[], None]) -> None:
        if self._setting:
            call()
            return
        with self._as_the_program_has_it():
            call()
        if value in (_OFF if self._on else _ON):
            self._context.applied(Applied(TF32_SETTING, overrides=self._context.place()))


def _newer_switches() -> list[Any]:
    """Those that each kind of operation has for itself."""
    backends = torch.backends
    kinds = (getattr(backends.cudnn, name, None) for name in ("conv", "rnn"))
    return [one for one in (backends.cuda.matmul, *kinds) if hasattr(one, "fp32_precision")]


def _settings() -> Iterator[tuple[Callable[[Any], None], Any]]:
    """What sets each switch, and what it is set to; the older ones first. torch refuses to tell of
    those that contradict newer ones."""
    with suppress(RuntimeError):
        yield torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        yield partial(setattr, torch.backends.cudnn, "allow_tf32"), torch.backends.cudnn.allow_tf32
    for one in _newer_switches():
        yield partial(setattr, one, "fp32_precision"), one.fp32_precision


def _refused(module: Any) -> NotApplied | None:
    device = next((p.device for p in parameters_of(module) if p.is_cuda), None)
    if device is None:
        return NotApplied(NOT_ON_CUDA, object=type(module).__qualname__)
    if torch.cuda.get_device_capability(device) < _NEEDED:
        return NotApplied(NO_TF32, object=torch.cuda.get_device_name(device))
    return None


FIX = Tf32()
