"""Have cuDNN try its algorithms for every convolution and keep the fastest."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.analyze.replay.known import Changes, KnownProgram, kernel_rows, switches
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.models import convolution_weights
from stepscope.record.fix import Applied, NotApplied, Reason, Target
from stepscope.record.trial import Rejection, RejectReason

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles

_MANY_SHAPES = 20
_TUNED = 0.92  # of a convolution's time with the fastest algorithm: a prior, between 0.8 and 1


class CudnnBenchmark(Fix):
    """Costs a little at the first step of each input shape; other algorithms round differently."""

    name = "cudnn_benchmark"
    group = "arithmetic"
    title = "let cuDNN find the fastest algorithm of each convolution"
    kind = FixKind.NUMERIC
    effort = "one line"
    needs = "cuda"
    missing = "no model ran on a CUDA device"
    slow_start = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        switches = program.switches
        if not program.convolved_dims:
            return Rejection(RejectReason.NO_CONVOLUTIONS)
        if switches.get("cudnn_benchmark"):
            return Rejection(RejectReason.ALREADY_ON)
        fixed = switches.get("deterministic") or switches.get("cudnn_deterministic")
        return Rejection(RejectReason.DETERMINISTIC) if fixed else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Convolutions by the fastest algorithm; None without any, or where that is on already."""
        from stepscope.analyze.replay.changes import scale_kernels
        from stepscope.analyze.replay.tasks import select_kernels

        set_to = switches(known)
        on = set_to is not None and set_to.cudnn_benchmark
        if on or not any(one.category == "convolution" for one in kernel_rows(known)):
            return None
        return [scale_kernels(select_kernels("convolution"), _TUNED)]

    def install(self, value: Any, hands: FixContext) -> None:
        import torch

        if not torch.cuda.device_count():
            hands.no_cuda()
            return
        benchmark = _Benchmark(hands)
        benchmark.respect()
        benchmark.set(True)
        hands.seams.root_found(benchmark.found)
        hands.seams.root_called(benchmark.called)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "put this line at the beginning", before=("torch.backends.cudnn.benchmark = True",)
        )

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        from stepscope.fixes.edit.locate import at_the_top

        return at_the_top(self, value, applied, files)


class _Benchmark:
    """The switch, which the program's own wish for the same algorithms every time turns off."""

    def __init__(self, hands: FixContext) -> None:
        self._hands = hands
        self._setting = False
        self._refused = False
        self._shapes: set[Any] | None = set()

    def set(self, on: bool) -> None:
        """Turn it, without taking that for the program's doing."""
        import torch

        self._setting = True
        try:
            torch.backends.cudnn.benchmark = on
        finally:
            self._setting = False

    def respect(self) -> None:
        """Give way where the program turns benchmarking off or wants the same results each time."""
        import torch

        switches = vars(type(torch.backends.cudnn))
        off, same = switches["benchmark"], switches["deterministic"]

        def property_set(call: Any, switch: Any, owner: Any, value: Any) -> None:
            call(switch, owner, value)
            if self._setting:
                return
            if switch is off and not value:
                self._refuse(NotApplied(Reason.TURNED_OFF, place=self._hands.place()))
            elif switch is same and value:
                self._refuse(NotApplied(Reason.DETERMINISTIC, place=self._hands.place()))

        self._hands.seams.around(type(off), "__set__", property_set)

    def found(self, module: Any) -> None:
        """Say what it means for a model that is about to run."""
        import torch

        name = type(module).__qualname__
        if torch.are_deterministic_algorithms_enabled():
            self._refuse(NotApplied(Reason.DETERMINISTIC))
        elif not any(weight.is_cuda for weight in convolution_weights(module)):
            self._hands.not_applied(NotApplied(Reason.NO_CUDA_CONVOLUTIONS, object=name))
        elif not self._refused:
            self._hands.applied(Applied(Target.CONVOLUTIONS, name))

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the shapes a model is given: each new one is benchmarked anew."""
        if self._shapes is not None and not self._refused:
            self._shapes.add(tuple(getattr(arg, "shape", None) for arg in args))
            if len(self._shapes) > _MANY_SHAPES:
                self._shapes = None
                self._hands.not_applied(NotApplied(Reason.MANY_SHAPES, value=_MANY_SHAPES))
        return call(module, *args, **kwargs)

    def _refuse(self, record: NotApplied) -> None:
        self._refused = True
        self.set(False)
        self._hands.not_applied(record)


FIX = CudnnBenchmark()
