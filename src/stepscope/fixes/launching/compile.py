"""Compile models with torch.compile: what it needs on a machine, whether a model can be given to
it, and what its CUDA graph replays overwrite.
"""

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from stepscope.analyze.replay.known import (
    Changes,
    KnownProgram,
    exact_names_pattern,
    host_operator_rows,
    is_pointwise,
)
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.record.fix import Applied, Broke, NotApplied, Reason, Target
from stepscope.record.trial import Rejection, RejectReason

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles


def missing_tools(kind: str) -> Reason | None:
    """Why code for a kind of device cannot be generated here; None if it can."""
    if kind == "cuda":
        return _missing_for_cuda()
    if kind == "cpu":
        return _missing_for_cpu()
    return None


def compile_in_place(module: Any, **options: Any) -> bool:
    """As `module.compile`, which compiles nothing of a class of torch.nn, such as Sequential:
    Dynamo leaves the code of torch.nn alone unless a function of another file calls it. Whether
    the class is the program's or a library's own."""
    import torch
    from torch._dynamo.external_utils import wrap_inline
    from torch._dynamo.trace_rules import check

    if not check(module.forward):
        module.compile(**options)
        return True
    module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl), **options)
    return False


def reason_not_compiled(module: Any) -> Reason | None:
    """Why a model is not to be compiled; None if it is."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return Reason.TORCHSCRIPT
    if isinstance(module, torch.nn.DataParallel):
        return Reason.DATA_PARALLEL
    return Reason.PROGRAM_COMPILES if is_compiled(module) else None


def is_compiled(module: Any) -> bool:
    """Whether torch.compile has been used on a model or a part of it. Does not import Dynamo."""
    return any(
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
        for part in module.modules()
    )


def _missing_for_cpu() -> Reason | None:
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError, OSError):
        return Reason.NO_CPP_COMPILER
    return None


def _missing_for_cuda() -> Reason | None:
    from torch.utils._triton import has_triton

    if not has_triton():
        return Reason.NO_TRITON
    if not any(map(shutil.which, (os.environ.get("CC") or "gcc", "gcc", "clang"))):
        return Reason.NO_C_COMPILER
    return None


_SMALL = 16 << 20  # bytes of an output that is worth a copy


def _guard_replays(hands: FixContext, compiled: WeakSet[Any]) -> None:
    """Say where a step begins, hand out copies of outputs, and put gradients that are still
    needed, as where they are accumulated, into memory of their own."""
    import torch
    from torch.utils._pytree import tree_map_only

    fresh = False  # whether an optimizer has stepped since the last call
    own: dict[int, int] = {}

    def stepped(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal fresh
        fresh = True
        return call(optimizer, *args, **kwargs)

    def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal fresh
        if module not in compiled:
            return call(module, *args, **kwargs)
        if torch.is_grad_enabled():
            _keep_gradients(module, own)
            if fresh:
                fresh = False
                torch.compiler.cudagraph_mark_step_begin()
        result = call(module, *args, **kwargs)
        if type(result) is torch.Tensor:
            return _copied(result)
        return tree_map_only(torch.Tensor, _copied, result)

    hands.seams.optimizer_stepped(stepped)
    hands.seams.root_called(called)


def _keep_gradients(module: Any, own: dict[int, int]) -> None:
    """Gradients are all there or, as usual before a forward, none. `own` has where those lie that
    were put aside: later ones are added to them. Many programs take them away only after the
    forward, so this is done in every step, and all of them are copied at once."""
    import torch

    trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
    first = next(trained, None)
    if first is None or first.grad is None:
        own.clear()
        return
    moved = [parameter for parameter in (first, *trained) if _lies_elsewhere(parameter, own)]
    if not moved:
        return
    with torch.no_grad():
        copies = [torch.empty_like(parameter.grad) for parameter in moved]
        torch._foreach_copy_(copies, [parameter.grad for parameter in moved])
    for parameter, copy in zip(moved, copies, strict=True):
        parameter.grad = copy
        own[id(parameter)] = copy.data_ptr()


def _lies_elsewhere(parameter: Any, own: dict[int, int]) -> bool:
    grad = parameter.grad
    return not (grad is None or grad.is_sparse or own.get(id(parameter)) == grad.data_ptr())


def _copied(tensor: Any) -> Any:
    if not tensor.is_cuda or tensor.numel() * tensor.element_size() > _SMALL:
        return tensor
    return tensor.clone()


_MODES = ("default", "reduce-overhead", "max-autotune")
_MODEL_PHASES = ("forward", "backward")
_COMPILE_S = {"cuda": 35.0, "cpu": 20.0}
_AUTOTUNING = 5.0  # times as long
_COMPILED_HOST = 0.4  # of eager host time: compiled code launches kernel by kernel, without Python
_CPU_CHAIN = 0.45  # of a pointwise chain's time as one loop: the middle ones touch no memory
_CPU_CALLS = 0.6  # of the time between operators: guards and wrappers stay
_REPLAYED = ("reduce-overhead", "max-autotune")
_backend: str | None = None  # tests put another compiler here, which needs no tools


class Compile(Fix):
    """Root models are compiled in place: their state, names and pickles stay as they are."""

    name = "compile"
    group = "launch"
    title = "compile models with torch.compile"
    redraws_model = True
    kind = FixKind.NUMERIC
    effort = "one line"
    values = (*_MODES, *(f"{mode},dynamic" for mode in _MODES))
    suggested = ("default", "reduce-overhead", "max-autotune")
    missing = "no model was called"
    slow_start = True

    def parse(self, text: str | None) -> Any:
        return super().parse("default" if text is None else text)

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return Rejection(RejectReason.PROGRAM_COMPILES) if program.compiles else None

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        if proposed is not None:
            return [proposed]
        return ["reduce-overhead", "default"] if program.device == "cuda" else ["default"]

    def other_values(self, value: str, program: ObservedProgram) -> list[str]:
        mode, comma, dynamic = value.partition(",")
        others = [other for other in _MODES if other != mode] if program.device == "cuda" else []
        return [f"{other}{comma}{dynamic}" for other in others]

    def setup_seconds(self, value: str, device: str) -> float:
        return _COMPILE_S[device] * (_AUTOTUNING if value.startswith("max-autotune") else 1.0)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Pointwise chains become one kernel each; the host launches without Python, or a graph."""
        from stepscope.analyze.replay.changes import drop_launch_cost, fuse_pointwise

        if known.device == "cpu":
            return _predict_on_cpu(known)
        if (value or "default").partition(",")[0] == "default":
            return [fuse_pointwise(), drop_launch_cost(*_MODEL_PHASES, keep=_COMPILED_HOST)]
        return [fuse_pointwise(), drop_launch_cost(*_MODEL_PHASES)]

    def install(self, value: Any, hands: FixContext) -> None:
        mode, _, dynamic = value.partition(",")
        compiled: WeakSet[Any] = WeakSet()

        def found(module: Any) -> None:
            name, place = type(module).__qualname__, hands.place()
            kind = next((p.device.type for p in module.parameters()), "cpu")
            reason = reason_not_compiled(module) or (None if _backend else missing_tools(kind))
            if reason is not None:
                hands.not_applied(NotApplied(reason, Target.MODEL, name, place))
                return
            options: dict[str, Any] = {"backend": _backend} if _backend else {"mode": mode}
            own = compile_in_place(module, **options, dynamic=True if dynamic else None)
            compiled.add(module)
            hands.applied(Applied(Target.MODEL, name, place, of_torch_nn=not own))

        hands.seams.root_found(found)
        if mode in _REPLAYED:
            _guard_replays(hands, compiled)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        text = str(error)
        if "CUDAGraphs that has been overwritten" in text:
            return Broke(Reason.GRAPH_MEMORY_REUSED)
        module = type(error).__module__
        if module.startswith(("torch._dynamo", "torch._inductor", "torch.fx")):
            first = next(filter(None, map(str.strip, text.splitlines())), "")
            return Broke(Reason.COMPILER_FAILED, error=f"{type(error).__name__}: {first[:200]}")
        return None

    def edit(self, value: Any, line: str) -> SourceEdit:
        call = _compile_call(value)
        return SourceEdit(f"call {call.format('model')} once the model is on its device")

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        from stepscope.fixes.edit.locate import LeftToUser, after_the_model

        for one in applied:
            if one.of_torch_nn:
                why = "a class of torch.nn, which needs model = torch.compile(model, …)"
                yield LeftToUser(str(one.place), why)
        own = [one for one in applied if not one.of_torch_nn]
        words = self.edit(value, "").words
        yield from after_the_model(self, words, _compile_call(value), own, files, order=1)

    def trainer_setting(self, value: Any, device: str | None = None) -> dict[str, str]:
        mode, _, dynamic = (value or "default").partition(",")
        if dynamic:
            return {}
        own_mode = {"torch_compile_mode": f'"{mode}"'} if mode != "default" else {}
        return {"torch_compile": "True"} | own_mode


def _compile_call(value: str) -> str:
    """The statement for a model, `{}` being its name."""
    mode, _, dynamic = value.partition(",")
    arguments = [f'mode="{mode}"'] if mode != "default" else []
    text = ", ".join([*arguments, *(["dynamic=True"] if dynamic else [])])
    return f"{{}}.compile({text})"


def _predict_on_cpu(known: KnownProgram) -> Changes:
    from stepscope.analyze.replay.changes import scale_host
    from stepscope.analyze.replay.tasks import StretchKind, select_host

    between = (StretchKind.GAP, StretchKind.PYTHON, StretchKind.ANNOTATION)
    changes = [scale_host(select_host(*between, phase=p), _CPU_CALLS) for p in _MODEL_PHASES]
    names = [o.name for o in host_operator_rows(known) if is_pointwise(o.name)]
    if names:
        pattern = exact_names_pattern(names)
        changes += [
            scale_host(select_host(operator=pattern, phase=p), _CPU_CHAIN) for p in _MODEL_PHASES
        ]
    return changes


FIX = Compile()
