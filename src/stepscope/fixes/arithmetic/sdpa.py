"""Fused attention in place of attention computed step by step: in nn.MultiheadAttention whose
weights nobody uses, in transformers' models, and where the program turns fused kernels off.
Attention written out by hand is reported, not changed."""

import ast
import linecache
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

from stepscope.analyze.replay import known as replay
from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.edit.calls import with_argument
from stepscope.fixes.inspect.user_code import (
    PACKAGE_FOLDER,
    SourceTree,
    call_under_way,
    short_path,
    source_tree,
    uses_of_name,
)
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.probe.sites import is_user_code, is_user_file
from stepscope.record.fix import (
    DETERMINISTIC,
    Applied,
    Broke,
    NotApplied,
    Reason,
    SourceLine,
    Switch,
    Target,
)
from stepscope.record.trial import Rejection

NO_ATTENTION = Reason("no_attention", "no attention layers")
FUSED_KEPT_ON = Target("fused_kept_on", "fused attention kept on{at}")
FUSED_ALLOWED = Target("fused_allowed", "fused attention allowed{at}")
ATTENTION_IMPLEMENTATION = Target(
    "attention_implementation", '{object} with attn_implementation="{after}"'
)
ATTENTION = Target("attention", "MultiheadAttention{at}, whose weights are not used")
WEIGHTS_ASKED_FOR = Reason("weights_asked_for", "attention weights are requested{at}")
WEIGHTS_RETURNED = Reason("weights_returned", "{object} returns attention weights ({code})")
WEIGHTS_MAY_BE_USED = Reason(
    "weights_may_be_used",
    "the program may use the weights of MultiheadAttention{at}; if not, pass need_weights=False",
)
NO_OTHER_ATTENTION = Reason(
    "no_other_attention", "{object} supports no other attention implementation"
)
WRITTEN_BY_HAND = Reason(
    "written_by_hand",
    "{object} computes attention by hand{at}; use torch.nn.functional.scaled_dot_product_attention",
)
NOTHING_TO_FUSE = Reason(
    "nothing_to_fuse", "{object} has no attention that torch or transformers could fuse"
)
SECOND_DERIVATIVES = Reason(
    "second_derivatives", "`{code}` needs second derivatives, which fused attention does not have"
)


def _keep_fused_on(context: FixContext) -> None:
    """Keep switches and contexts from allowing only unfused attention. cuDNN's is left as the
    program sets it: some turn it off for its bugs."""
    import torch.nn.attention as attention

    kept_on: set[str] = set()

    def allowed() -> bool:
        if not torch.are_deterministic_algorithms_enabled():
            return True
        context.not_applied(NotApplied(DETERMINISTIC, place=context.place()))
        return False

    def switched(name: str, call: Any, enabled: Any) -> None:
        kept_on.discard(name)
        if not enabled and allowed():
            context.applied(Applied(FUSED_KEPT_ON, place=context.place()))
            kept_on.add(name)
            enabled = True
        call(enabled)

    def put_back(on: bool) -> None:
        for name in () if on else kept_on:
            getattr(torch.backends.cuda, name)(False)
        kept_on.clear()

    def chosen(call: Any, backends: Any, *args: Any, **kwargs: Any) -> Any:
        asked = list(backends) if isinstance(backends, list | tuple) else [backends]
        kinds = attention.SDPBackend
        fused = [kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION]
        if kinds.MATH in asked and not any(one in asked for one in fused) and allowed():
            context.applied(Applied(FUSED_ALLOWED, place=context.place()))
            backends = [*fused, *asked]
        return call(backends, *args, **kwargs)

    for name in ("enable_flash_sdp", "enable_mem_efficient_sdp"):
        context.seams.around(torch.backends.cuda, name, partial(switched, name))
    context.when_switched(put_back)
    context.seams.around(attention, "sdpa_kernel", chosen)


_RETURNS_WEIGHTS = "output_attentions"


class _TransformersSwitch:
    """Switches models to torch's fused attention, and back when weights are requested."""

    def __init__(self, context: FixContext) -> None:
        self._context = context
        self._switched: dict[int, list[Any]] = {}  # by root

    def found(self, module: Any) -> None:
        """Switch the models of transformers within a root, before its first call."""
        for model in _transformers_models(module):
            if self._switch(model):
                self._switched.setdefault(id(module), []).append(model)

    def switched(self, on: bool) -> None:
        """Off, every model has the attention it had before."""
        for models in () if on else self._switched.values():
            for model in models:
                model.set_attn_implementation("eager")
        self._switched.clear()

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Fused attention has no weights to return."""
        if kwargs.get(_RETURNS_WEIGHTS) and id(module) in self._switched:
            for model in self._switched.pop(id(module)):
                model.set_attn_implementation("eager")
            place = self._context.place()
            self._context.not_applied(NotApplied(WEIGHTS_ASKED_FOR, place=place))
        return call(module, *args, **kwargs)

    def _switch(self, model: Any) -> bool:
        name = type(model).__qualname__
        config = model.config
        if getattr(config, "_attn_implementation", None) != "eager":
            return False
        if getattr(config, _RETURNS_WEIGHTS, False):
            self._context.not_applied(_returns_weights(name))
            return False
        try:
            model.set_attn_implementation("sdpa")
        except (AttributeError, ValueError, ImportError):
            pass
        if config._attn_implementation != "sdpa":
            self._context.not_applied(NotApplied(NO_OTHER_ATTENTION, object=name))
            return False
        self._context.applied(Applied(ATTENTION_IMPLEMENTATION, name, after="sdpa"))
        return True


def _transformers_models(module: Any) -> Iterator[Any]:
    """The outermost models of transformers within a root."""
    if "transformers.modeling_utils" not in sys.modules:
        return
    from transformers import PreTrainedModel

    inside: set[int] = set()
    for model in module.modules():
        if isinstance(model, PreTrainedModel) and id(model) not in inside:
            inside.update(id(part) for part in model.modules())
            yield model


def _returns_weights(name: str) -> NotApplied:
    return NotApplied(WEIGHTS_RETURNED, object=name, code=_RETURNS_WEIGHTS)


def _switch_refused(model: Any) -> NotApplied | None:
    """Why a model of transformers keeps its attention; None where only trying tells."""
    name = type(model).__qualname__
    if getattr(model.config, _RETURNS_WEIGHTS, False):
        return _returns_weights(name)
    if not getattr(model, "_supports_sdpa", True):
        return NotApplied(NO_OTHER_ATTENTION, object=name)
    return None


_NEED_WEIGHTS = 3  # its place among the arguments that may follow the query


def _drop_unused_weights(context: FixContext) -> None:
    """Pass need_weights=False where the source shows that the weights are dropped."""
    known: dict[tuple[CodeType, int], bool] = {}
    passed = (torch.__path__[0], PACKAGE_FOLDER)

    def dropped() -> bool:
        """Whether the current call drops the weights; checked once per place."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(passed):
            frame = frame.f_back
        if frame is None:
            return False
        site = (frame.f_code, frame.f_lasti)
        if site not in known:
            found = call_under_way(frame)
            known[site] = found is not None and drops_second(*found)
            if known[site]:
                context.applied(Applied(ATTENTION, place=context.place()))
            else:
                context.not_applied(NotApplied(WEIGHTS_MAY_BE_USED, place=context.place()))
        return known[site]

    def forward(call: Any, module: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[_NEED_WEIGHTS] if len(args) > _NEED_WEIGHTS else kwargs.get("need_weights")
        if given is not False and dropped():
            if len(args) > _NEED_WEIGHTS:
                args = (*args[:_NEED_WEIGHTS], False, *args[_NEED_WEIGHTS + 1 :])
            else:
                kwargs["need_weights"] = False
        return call(module, query, *args, **kwargs)

    context.seams.around(torch.nn.MultiheadAttention, "forward", forward)


def drops_second(call: ast.Call, tree: SourceTree) -> bool:
    """Whether only the first of the pair a call returns is used."""
    match tree.parent(call):
        case ast.Subscript(slice=ast.Constant(value=0), value=value):
            return value is call
        case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name)])], value=value):
            if value is not call:
                return False
            scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
            scope = next(at for at in tree.above(call) if isinstance(at, scopes))
            return all(
                isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                for node in uses_of_name(scope, name)
            )
    return False


_FUSED_SHARE = 0.5  # of the matrix product rate that fused attention reaches, a prior
_SCORES_LEFT = 0.03  # of the passes over the scores: they stay in registers
_CPU_SCORES = r"^aten::(_softmax|_softmax_backward_data|masked_fill_?|native_dropout)$"
_CPU_SCORES_LEFT = 0.35
_CPU_PRODUCTS_LEFT = 0.9
_PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm")


def _written_out(module: Any) -> Iterator[NotApplied]:
    """Where a model's own layers multiply, take a softmax, and multiply again."""
    for cls in {type(layer) for layer in module.modules()}:
        code = getattr(getattr(cls, "forward", None), "__code__", None)
        if code is None or not is_user_code(code):
            continue
        line = _softmax_between_products(code)
        if line is not None:
            place = SourceLine(os.path.basename(code.co_filename), line)
            yield NotApplied(WRITTEN_BY_HAND, object=cls.__qualname__, place=place)


def _report_written_out(module: Any, context: FixContext) -> None:
    for record in _written_out(module):
        context.not_applied(record)


def _softmax_between_products(code: CodeType) -> int | None:
    """The line of a softmax with a product before and after it, in one function."""
    tree = source_tree(code.co_filename)
    for function in ast.walk(tree.root) if tree else ():
        if not isinstance(function, ast.FunctionDef) or function.name != code.co_name:
            continue
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        if first != code.co_firstlineno:
            continue
        products, softmaxes = [], []
        for node in ast.walk(function):
            match node:
                case ast.BinOp(op=ast.MatMult()):
                    products.append(node.lineno)
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    if name in _PRODUCTS:
                        products.append(node.lineno)
                    elif "softmax" in name:
                        softmaxes.append(node.lineno)
        for line in softmaxes if len(products) > 1 else ():
            if min(products) <= line <= max(products):
                return line
    return None


def _kept_off() -> bool:
    """Whether the program keeps fused kernels off, for all or by contexts of its own."""
    backends = torch.backends.cuda
    if not (backends.flash_sdp_enabled() and backends.mem_efficient_sdp_enabled()):
        return True
    files = (getattr(module, "__file__", None) or "" for module in [*sys.modules.values()])
    own = {file for file in files if file.endswith(".py") and is_user_file(file)}
    return any("sdpa_kernel" in line for file in own for line in linecache.getlines(file))


def _refused(module: Any) -> NotApplied | None:
    """Why nothing in a model can be fused for sure; None where trying tells."""
    asked = [
        _weights_used(owner, name)
        for owner in module.modules()
        for name, part in owner.named_children()
        if isinstance(part, torch.nn.MultiheadAttention) and not isinstance(owner, _layers())
    ]
    eager = [
        one for one in _transformers_models(module) if one.config._attn_implementation == "eager"
    ]
    found = [*asked, *map(_switch_refused, eager)]
    if found:
        return refused_by_all(found)
    name = type(module).__qualname__
    return next(_written_out(module), NotApplied(NOTHING_TO_FUSE, object=name))


def _layers() -> tuple[type, ...]:
    """torch's own, which drop the weights."""
    return torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer


def _weights_used(owner: Any, name: str) -> NotApplied | None:
    """Why the attention layer that a module calls by `name` stays; None where only trying tells."""
    code = getattr(type(owner).forward, "__code__", None)
    tree = source_tree(code.co_filename) if code is not None and is_user_code(code) else None
    if code is None or tree is None:
        return None
    lines = {line for _, _, line in code.co_lines()}
    calls = [one for one in tree.calls.values() if _calls(one, name) and one.lineno in lines]
    asking = [call for call in calls if not _drops_itself(call)]
    if not calls or any(drops_second(call, tree) for call in asking):
        return None
    if not asking:
        return NotApplied(NOTHING_TO_FUSE, object=type(owner).__qualname__)
    place = SourceLine(short_path(code.co_filename), asking[0].lineno)
    return NotApplied(WEIGHTS_MAY_BE_USED, place=place)


def _calls(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _drops_itself(call: ast.Call) -> bool:
    given = (one.value for one in call.keywords if one.arg == "need_weights")
    return any(isinstance(value, ast.Constant) and value.value is False for value in given)


class Sdpa(Fix):
    """In torch's MultiheadAttention, in models of transformers, and where the program turns the
    fused kernels off. Attention written out by hand is reported, not changed."""

    name = "sdpa"
    group = "arithmetic"
    title = "fused attention in torch's and transformers' layers"
    redraws_model = True
    switch = Switch.AT_STEP
    kind = FixKind.NUMERIC
    effort = "one argument"
    missing = "no attention was found that torch or transformers could fuse"

    def applies(self, program: ObservedProgram) -> Rejection | None:
        """A finding may know of attention outside such layers."""
        attends = any(model.get("attends", True) for model in program.every_model)
        return None if attends or program.proposed(self.name) else unsuitable(NO_ATTENTION)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Passes over the scores go away and the products run as one fused kernel."""
        if known.device == "cpu":
            if not replay.attention_written_out(known):
                return None
            products = tasks.select_host(operator=replay.ATTENTION_PRODUCTS)
            return [
                changes.scale_host(tasks.select_host(operator=_CPU_SCORES), _CPU_SCORES_LEFT),
                changes.scale_host(products, _CPU_PRODUCTS_LEFT),
            ]
        rates = replay.device_limits(known).flops_per_s
        rows = replay.roofline_rows(known)
        ours = {(row.name, row.shape, row.dtype) for row in replay.score_rows(rows)}

        def new_time(row: replay.RooflineRow) -> float | None:
            if (row.name, row.shape, row.dtype) not in ours:
                return None
            now = float(row.time_ns)
            if not re.search(replay.ATTENTION_PRODUCTS, row.name):
                return now * _SCORES_LEFT
            rate = rates.get(row.dtype)
            return min(now, row.flops / rate * 1e9 / _FUSED_SHARE) if rate else None

        change = replay.scale_operators(replay.factors_by_operator(rows, new_time))
        return None if change is None else [change]

    def check(self, live: LiveProgram) -> NotApplied | None:
        return None if _kept_off() else refused_by_all(_refused(one.module) for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        switching = _TransformersSwitch(context)
        _keep_fused_on(context)
        _drop_unused_weights(context)
        context.when_switched(switching.switched)
        context.root_found(switching.found)
        context.root_found(lambda module: _report_written_out(module, context))
        context.seams.root_called(switching.called)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        text = str(error)
        if "scaled_dot_product" in text and "not implemented" in text:
            return Broke(SECOND_DERIVATIVES, code=line)
        return None

    def edit(self, value: Any, line: str) -> SourceEdit:
        changed = with_argument(line, ("from_pretrained",), "attn_implementation", '"sdpa"')
        if changed is not None:
            return SourceEdit('pass attn_implementation="sdpa"', changed)
        return SourceEdit(
            "pass need_weights=False to MultiheadAttention, or call "
            "torch.nn.functional.scaled_dot_product_attention"
        )


FIX = Sdpa()
