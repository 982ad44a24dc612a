"""Compile models with torch.compile."""

from typing import Any
from weakref import WeakSet

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.compile_replays import guard_replays
from stepscope.fixes.compile_tools import OF_TORCH, compile_in_place, missing_tools, unfit_model

_MODES = ("default", "reduce-overhead", "max-autotune")
_REPLAYED = ("reduce-overhead", "max-autotune")
_backend: str | None = None  # tests put another compiler here, which needs no tools


class Compile(Fix):
    """Root models are compiled in place: their state, names and pickles stay as they are."""

    name = "compile"
    group = "launch"
    title = "compile models with torch.compile"
    kind = Kind.NUMERIC
    effort = "one line"
    values = (*_MODES, *(f"{mode},dynamic" for mode in _MODES))
    suggested = ("default", "reduce-overhead", "max-autotune")
    missing = "no model was called"

    def parse(self, text: str | None) -> Any:
        return super().parse("default" if text is None else text)

    def install(self, value: Any, hands: Hands) -> None:
        mode, _, dynamic = value.partition(",")
        compiled: WeakSet[Any] = WeakSet()

        def found(module: Any) -> None:
            name = f"{type(module).__qualname__}, called at {hands.place()}"
            kind = next((p.device.type for p in module.parameters()), "cpu")
            reason = unfit_model(module) or (None if _backend else missing_tools(kind))
            if reason is not None:
                hands.unfit(f"{name}: {reason}")
                return
            options: dict[str, Any] = {"backend": _backend} if _backend else {"mode": mode}
            own = compile_in_place(module, **options, dynamic=True if dynamic else None)
            compiled.add(module)
            hands.applied(name if own else f"{name} ({OF_TORCH})")

        hands.seams.root_found(found)
        if mode in _REPLAYED:
            guard_replays(hands, compiled)

    def explain(self, error: BaseException, line: str) -> str | None:
        text = str(error)
        if "CUDAGraphs that has been overwritten" in text:
            return (
                "the CUDA graphs of this mode reuse the memory of gradients or outputs that are "
                "still needed, as when gradients are accumulated: use compile=default"
            )
        module = type(error).__module__
        if module.startswith(("torch._dynamo", "torch._inductor", "torch.fx")):
            first = next(filter(None, map(str.strip, text.splitlines())), "")
            return f"torch.compile failed: {type(error).__name__}: {first[:200]}"
        return None

    def edit(self, value: Any, line: str) -> Edit:
        mode, _, dynamic = value.partition(",")
        arguments = [f'mode="{mode}"'] if mode != "default" else []
        text = ", ".join([*arguments, *(["dynamic=True"] if dynamic else [])])
        return Edit(f"call model.compile({text}) once the model is on its device")


FIX = Compile()
