"""Have cuDNN try its algorithms for every convolution and keep the fastest."""

from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram, kernel_rows, switches
from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.inspect.models import convolution_weights
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.record.fix import DETERMINISTIC, Applied, NotApplied, Reason, Switch, Target
from stepscope.record.trial import Rejection

_MANY_SHAPES = 20
_TUNED = 0.92  # of a convolution's time with the fastest algorithm: a prior, between 0.8 and 1
NO_CONVOLUTIONS = Reason("no_convolutions", "no convolutions")
WANTS_DETERMINISM = Reason("deterministic", "the program asks for deterministic algorithms")
CONVOLUTIONS = Target("convolutions", "the convolutions of {object}")
NO_CUDA_CONVOLUTIONS = Reason(
    "no_cuda_convolutions", "{object} has no convolutions on a CUDA device"
)
TURNED_OFF = Reason("turned_off", "the program turns it off{at}")
MANY_SHAPES = Reason(
    "many_shapes",
    "inputs come in more than {value} shapes; each new one is benchmarked again, which may be"
    " slower than without",
)


class CudnnBenchmark(Fix):
    """Costs a little at the first step of each input shape; other algorithms round differently."""

    name = "cudnn_benchmark"
    group = "arithmetic"
    title = "let cuDNN find the fastest algorithm of each convolution"
    kind = FixKind.NUMERIC
    effort = "one line"
    edited_at_top = True
    needs = "cuda"
    switch = Switch.AT_STEP
    missing = "no model ran on a CUDA device"
    slow_start = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        switches = program.switches
        if not program.convolved_dims:
            return unsuitable(NO_CONVOLUTIONS)
        if switches.get("cudnn_benchmark"):
            return unsuitable(ALREADY_ON)
        fixed = switches.get("deterministic") or switches.get("cudnn_deterministic")
        return unsuitable(WANTS_DETERMINISM) if fixed else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Convolutions by the fastest algorithm; None without any, or if it is already on."""
        set_to = switches(known)
        on = set_to is not None and set_to.cudnn_benchmark
        if on or not any(one.category == "convolution" for one in kernel_rows(known)):
            return None
        return [changes.scale_kernels(tasks.select_kernels("convolution"), _TUNED)]

    def check(self, live: LiveProgram) -> NotApplied | None:
        if torch.backends.cudnn.deterministic:
            return NotApplied(DETERMINISTIC)
        return refused_by_all(_refused(one.module) for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        benchmark = _Benchmark(context)
        benchmark.respect()
        context.when_switched(benchmark.turn)
        context.root_found(benchmark.found)
        context.seams.root_called(benchmark.called)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "put this line at the beginning", before=("torch.backends.cudnn.benchmark = True",)
        )


class _Benchmark:
    """The switch, which is turned off if the program asks for deterministic algorithms."""

    def __init__(self, context: FixContext) -> None:
        self._context = context
        self._setting = False
        self._refused = self._before = False
        self._shapes: set[Any] | None = set()

    def turn(self, on: bool) -> None:
        """Turn it on unless that was refused, or as it was before."""
        if on:
            self._before = bool(torch.backends.cudnn.benchmark)
        self.set((on and not self._refused) or self._before)

    def set(self, on: bool) -> None:
        """Set it, without treating that as the program's action."""
        self._setting = True
        try:
            torch.backends.cudnn.benchmark = on
        finally:
            self._setting = False

    def respect(self) -> None:
        """Give way if the program turns benchmarking off or asks for deterministic results."""
        switches = vars(type(torch.backends.cudnn))
        off, same = switches["benchmark"], switches["deterministic"]

        def property_set(call: Any, switch: Any, owner: Any, value: Any) -> None:
            call(switch, owner, value)
            if self._setting:
                return
            if switch is off:
                self._before = bool(value)
            if switch is off and not value:
                self._refuse(NotApplied(TURNED_OFF, place=self._context.place()))
            elif switch is same and value:
                self._refuse(NotApplied(DETERMINISTIC, place=self._context.place()))

        self._context.watching.around(type(off), "__set__", property_set)

    def found(self, module: Any) -> None:
        """Say what it means for a model that is about to run."""
        refused = _refused(module)
        if refused is not None and refused.reason == DETERMINISTIC:
            self._refuse(refused)
        elif refused is not None:
            self._context.not_applied(refused)
        elif not self._refused:
            self._context.applied(Applied(CONVOLUTIONS, type(module).__qualname__))

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a model's input shapes: each new one is benchmarked again."""
        if self._shapes is not None and not self._refused:
            self._shapes.add(tuple(getattr(arg, "shape", None) for arg in args))
            if len(self._shapes) > _MANY_SHAPES:
                self._shapes = None
                self._context.not_applied(NotApplied(MANY_SHAPES, value=_MANY_SHAPES))
        return call(module, *args, **kwargs)

    def _refuse(self, record: NotApplied) -> None:
        self._refused = True
        self.set(self._before)
        self._context.not_applied(record)


def _refused(module: Any) -> NotApplied | None:
    if torch.are_deterministic_algorithms_enabled():
        return NotApplied(DETERMINISTIC)
    if any(weight.is_cuda for weight in convolution_weights(module)):
        return None
    return NotApplied(NO_CUDA_CONVOLUTIONS, object=type(module).__qualname__)


FIX = CudnnBenchmark()
