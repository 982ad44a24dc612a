"""Run models under autocast: bfloat16 or float16 where that is safe, float32 elsewhere. Gives way
where the program uses mixed precision of its own.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.fixes.arithmetic.loss_scaler import LossScaler
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.tensors import map_tensors
from stepscope.fixes.inspect.user_code import calling_frame
from stepscope.record.fix import Applied, Broke, NotApplied, Reason, Target

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


FIX = Amp()
