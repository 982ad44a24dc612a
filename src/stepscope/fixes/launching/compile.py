"""Compile models with torch.compile: what it needs on a machine, which models it can take, and what
its CUDA graph replays overwrite."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from stepscope.analyze.replay import known as replay
from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import COMPILED, ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.inspect.models import parameters_of
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.record.fix import (
    MODEL,
    PROGRAM_COMPILES,
    TORCHSCRIPT,
    Applied,
    Broke,
    NotApplied,
    Reason,
)
from stepscope.record.trial import Rejection

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles


DATA_PARALLEL = Reason(
    "data_parallel",
    "{subject}: nn.DataParallel copies models at every call: use DistributedDataParallel",
)
NO_CPP_COMPILER = Reason(
    "no_cpp_compiler", "{subject}: no C++ compiler: install g++ or clang++, or set CXX"
)
NO_TRITON = Reason(
    "no_triton",
    "{subject}: no Triton for this GPU: pip install triton (it needs compute capability 7.0)",
)
NO_C_COMPILER = Reason(
    "no_c_compiler", "{subject}: no C compiler, which Triton needs: install gcc or clang, or set CC"
)
GRAPH_MEMORY_REUSED = Reason(
    "graph_memory_reused",
    "this mode's CUDA graphs overwrite gradients or outputs still in use, as when accumulating"
    " gradients: use compile=default",
)
COMPILER_FAILED = Reason("compiler_failed", "torch.compile failed: {error}")


def absent_tools(kind: str) -> Reason | None:
    """What code for a kind of device cannot be generated without and is not installed here; None
    where nothing is missing at a glance."""
    if kind == "cuda":
        if find_spec("triton") is None:
            return NO_TRITON
        found = any(map(shutil.which, (os.environ.get("CC") or "gcc", "gcc", "clang")))
        return None if found else NO_C_COMPILER
    found = any(map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++", "gcc")))
    return NO_CPP_COMPILER if kind == "cpu" and not found else None


def missing_tools(kind: str) -> Reason | None:
    """Why code for a kind of device cannot be generated here; None if it can. Imports the
    compiler."""
    absent = absent_tools(kind)
    if absent is not None:
        return absent
    if kind == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else NO_TRITON
    if kind == "cpu":
        from torch._inductor import exc
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except (exc.InvalidCxxCompiler, RuntimeError, OSError):
            return NO_CPP_COMPILER
    return None


def compile_in_place(module: Any, **options: Any) -> bool:
    """As `module.compile`, which compiles nothing of a class of torch.nn, such as Sequential:
    Dynamo leaves the code of torch.nn alone unless a function of another file calls it. Whether
    the class is the program's or a library's own."""
    from torch._dynamo.external_utils import wrap_inline
    from torch._dynamo.trace_rules import check

    if not check(module.forward):
        module.compile(**options)
        return True
    module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl), **options)
    return False


def reason_not_compiled(module: Any) -> Reason | None:
    """Why a model must not be compiled, or None."""
    if isinstance(module, torch.jit.ScriptModule):
        return TORCHSCRIPT
    if isinstance(module, torch.nn.DataParallel):
        return DATA_PARALLEL
    return PROGRAM_COMPILES if is_compiled(module) else None


def is_compiled(module: Any) -> bool:
    """Whether torch.compile has been used on a model or a part of it. Does not import Dynamo."""
    from stepscope.probe.points.root_model import is_called_compiled

    return is_called_compiled(module) or any(
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
        for part in module.modules()
    )


_SMALL = 16 << 20  # bytes of an output that is worth a copy


def _guard_replays(context: FixContext, compiled: WeakSet[Any]) -> None:
    """Mark where steps begin, hand out copies of outputs, and move gradients that are still needed,
    as in accumulation, to separate memory."""
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
        return torch.utils._pytree.tree_map_only(torch.Tensor, _copied, result)

    context.seams.optimizer_stepped(stepped)
    context.seams.root_called(called)


def _keep_gradients(module: Any, own: dict[int, int]) -> None:
    """Before a forward either all gradients exist or, as usual, none. `own` has the addresses of
    saved ones, to which later ones are added. Many programs clear gradients only after the forward,
    so this runs every step and copies all at once."""
    trained = (parameter for parameter in parameters_of(module) if parameter.requires_grad)
    first = next(trained, None)
    if first is None or first.grad is None:
        own.clear()
        return
    dense = [p for p in (first, *trained) if p.grad is not None and not p.grad.is_sparse]
    moved = [p for p in dense if own.get(id(p)) != p.grad.data_ptr()]
    if not moved:
        return
    with torch.no_grad():
        copies = [torch.empty_like(parameter.grad) for parameter in moved]
        torch._foreach_copy_(copies, [parameter.grad for parameter in moved])
    for parameter, copy in zip(moved, copies, strict=True):
        parameter.grad = copy
        own[id(parameter)] = copy.data_ptr()


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
    default = "default"
    suggested = ("default", "reduce-overhead", "max-autotune")
    missing = "no model was called"
    slow_start = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return unsuitable(COMPILED) if program.compiles else None

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
        if known.device == "cpu":
            return _predict_on_cpu(known)
        kept = {"keep": _COMPILED_HOST} if (value or "default").startswith("default") else {}
        return [changes.fuse_pointwise(), changes.drop_launch_cost(*_MODEL_PHASES, **kept)]

    def check(self, live: LiveProgram) -> NotApplied | None:
        return refused_by_all(_refused(one.module, absent_tools) for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        mode, _, dynamic = value.partition(",")
        compiled: WeakSet[Any] = WeakSet()

        def found(module: Any) -> None:
            name, place = type(module).__qualname__, context.place()
            refused = _refused(module, missing_tools)
            if refused is not None:
                context.not_applied(replace(refused, place=place))
                return
            options: dict[str, Any] = {"backend": _backend} if _backend else {"mode": mode}
            own = compile_in_place(module, **options, dynamic=True if dynamic else None)
            compiled.add(module)
            context.applied(Applied(MODEL, name, place, of_torch_nn=not own))

        context.root_found(found)
        if mode in _REPLAYED:
            _guard_replays(context, compiled)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        text = str(error)
        if "CUDAGraphs that has been overwritten" in text:
            return Broke(GRAPH_MEMORY_REUSED)
        module = type(error).__module__
        if not module.startswith(("torch._dynamo", "torch._inductor", "torch.fx")):
            return None
        first = next(filter(None, map(str.strip, text.splitlines())), "")
        return Broke(COMPILER_FAILED, error=f"{type(error).__name__}: {first[:200]}")

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


def _refused(module: Any, missing: Callable[[str], Reason | None]) -> NotApplied | None:
    """Why a model is not compiled; None where it is. `missing`: which tools a device lacks."""
    kind = next((p.device.type for p in parameters_of(module)), "cpu")
    reason = reason_not_compiled(module) or (None if _backend else missing(kind))
    return None if reason is None else NotApplied(reason, MODEL, type(module).__qualname__)


def _compile_call(value: str) -> str:
    """The statement for a model, `{}` being its name."""
    mode, _, dynamic = value.partition(",")
    arguments = [f'mode="{mode}"'] if mode != "default" else []
    text = ", ".join([*arguments, *(["dynamic=True"] if dynamic else [])])
    return f"{{}}.compile({text})"


def _predict_on_cpu(known: KnownProgram) -> Changes:
    kinds, select = tasks.StretchKind, tasks.select_host
    between = [select(kinds.GAP, kinds.PYTHON, kinds.ANNOTATION, phase=p) for p in _MODEL_PHASES]
    names = [o.name for o in replay.host_operator_rows(known) if replay.is_pointwise(o.name)]
    pattern = replay.exact_names_pattern(names)
    chains = [select(operator=pattern, phase=p) for p in _MODEL_PHASES] if names else []
    inside = _share_in_models(known)
    return [
        *(changes.scale_host(one, 1 - inside * (1 - _CPU_CALLS)) for one in between),
        *(changes.scale_host(one, 1 - inside * (1 - _CPU_CHAIN)) for one in chains),
    ]


def _share_in_models(known: KnownProgram) -> float:
    """Of forward, what root models' own calls take: a loss or a distribution after them stays as it
    is. By the lines that call them, timed in the same steps as those that call backward."""
    phases = known.show.phases_ms if known.show else {}
    ran = {"forward": 0.0, "backward": 0.0}
    for site in known.show.sites if known.show else ():
        if site.what in ran:
            ran[site.what] += site.total_ms
    if not (ran["backward"] and phases.get("backward") and phases.get("forward")):
        return 1.0
    calls_ms = phases["backward"] * ran["forward"] / ran["backward"]
    return min(1.0, calls_ms / phases["forward"])


FIX = Compile()
