"""Compile models with torch.compile."""

from typing import Any
from weakref import WeakSet

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.compile_tools import OF_TORCH, compile_in_place, missing_tools, unfit_model

_MODES = ("default", "reduce-overhead", "max-autotune")
_REPLAYED = ("reduce-overhead", "max-autotune")
_SMALL = 16 << 20  # bytes of an output that is worth a copy
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
            _guard_outputs(hands, compiled)

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


def _guard_outputs(hands: Hands, compiled: WeakSet[Any]) -> None:
    """Modes that replay CUDA graphs: say where a step begins, and hand out copies of outputs.

    A replay overwrites what the one before returned, which a program may have kept.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    fresh = False  # whether an optimizer has stepped since the last call

    def stepped(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal fresh
        fresh = True
        return call(optimizer, *args, **kwargs)

    def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal fresh
        if module not in compiled:
            return call(module, *args, **kwargs)
        if fresh and torch.is_grad_enabled():
            fresh = False
            torch.compiler.cudagraph_mark_step_begin()
        result = call(module, *args, **kwargs)
        if type(result) is torch.Tensor:
            return _copied(result)
        return tree_map_only(torch.Tensor, _copied, result)

    hands.seams.optimizer_stepped(stepped)
    hands.seams.root_called(called)


def _copied(tensor: Any) -> Any:
    if not tensor.is_cuda or tensor.numel() * tensor.element_size() > _SMALL:
        return tensor
    return tensor.clone()


FIX = Compile()
