"""Root model called.

During the first steps `nn.Module.__call__` itself is watched to find the outermost modules that own
parameters; from then on only their classes' `__call__` is. While a root runs, the search pauses, so
Dynamo sees no trace of it; what stands on a user's class refers to this module by name only, so
classes can still be pickled by value.
"""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any
from weakref import ref

import torch
from torch import is_grad_enabled  # before the program may put its own there
from torch.compiler import is_compiling

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches, drop_caller_frame
from stepscope.probe.points.loader import batch_size
from stepscope.probe.points.seams import FixHost
from stepscope.probe.row_log import FORWARD, LEAVE, LEAVE_TAIL
from stepscope.probe.step_rule import NEVER
from stepscope.probe.unseen import parameters_of, unseen_by_program
from stepscope.record.facts import RootFact, SiteKind
from stepscope.record.kinds import MODEL_WRAPPERS

_FORWARD, _EVALUATION = SiteKind.FORWARD, SiteKind.EVALUATION
_SEARCH_STEPS = 3
_MOST_SEARCHES = 20
_DEEP = 16  # modules of one class nested into each other
_original = torch.nn.Module.__call__


class RootModels:
    """Which modules are roots, and whether the search for them is on."""

    def __init__(self, core: FixHost, patches: Patches) -> None:
        self.core: Any = core  # a Core but where fixes act unobserved
        self.inside: set[int] = set()  # threads that are inside a root
        self.searching = False
        self.suspended = False
        self.measure: Callable[[int], None] | None = None
        """Asks once for the bytes a forward with gradients leaves allocated on the device."""
        self._patches = patches
        self._adopted: set[type] = set()
        self._searches = 0
        self._until = 0
        self._numbers: dict[int, int] = {}  # id of a module → its number; -1: not a root
        self._nests: dict[int, bool] = {}  # by id of a module
        self._names: list[str] = []
        self._met: dict[int, ref[Any]] = {}  # roots that fixes have prepared
        self._counted = (-1, -1, -1)  # row, backwards, root of the last samples counted

    def search(self) -> None:
        """Watch every module's call during the next steps."""
        self._numbers.clear()
        self._nests.clear()
        if self._searches < _MOST_SEARCHES:
            self._searches += 1
            self._until = self.core.steps + _SEARCH_STEPS
            self.searching = True
            self.core.wake()
            self.watch()

    def watch(self) -> None:
        """A `__call__` of the program's own stays: it may call ours, and ours must not call it."""
        if torch.nn.Module.__call__ is _original and not self.suspended:
            torch.nn.Module.__call__ = _searching_call

    def unwatch(self) -> None:
        if torch.nn.Module.__call__ is _searching_call:
            torch.nn.Module.__call__ = _original

    def step_ended(self, step: int) -> int:
        if self.searching and step < self._until:
            return self._until
        if self.searching:
            self.searching = False
            self.unwatch()
        return NEVER

    def take_over(self, before: "RootModels") -> None:
        """Do for a while what fixes want that act here unobserved."""
        theirs, ours = before.core, self.core
        ours.on_first_call[:0], ours.around_root[:0] = theirs.on_first_call, theirs.around_root
        ours.fixing = ours.fixing or theirs.fixing
        self._met = before._met

    def adopt(self, cls: type) -> None:
        """Time the calls of a class from now on."""
        if cls in self._adopted:
            return
        self._adopted.add(cls)
        owner = next(base for base in cls.__mro__ if "__call__" in vars(base))
        own = vars(cls)["__call__"] if owner is cls else None
        self._patches.set(cls, "__call__", _make_call(owner, own))

    def nests(self, module: Any) -> bool:
        """Whether modules of its own class are nested so deep in it that a frame of ours in each of
        their calls could exceed Python's recursion limit."""
        known = self._nests.get(id(module))
        if known is None:
            known = self._nests[id(module)] = _nesting(module) > _DEEP
        return known

    def aside(self, call: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a root with nothing of ours on its class meanwhile."""
        cls = type(module)
        self._patches.suspend(cls)
        try:
            return call(module, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            if not self.suspended:
                self._patches.resume(cls)

    def number(self, module: Any, given: Any) -> int:
        """A root's number in order of appearance; -1 for a module no optimizer trains. `given` are
        the arguments of the present call."""
        known = self._numbers.get(id(module))
        if known is None:
            ids = self.core.param_ids
            known = -1
            if not ids or any(id(p) in ids for p in parameters_of(module)):
                name = type(module).__qualname__
                if name not in self._names:
                    self._names.append(name)
                    self.core.facts.write(RootFact(id=len(self._names) - 1, name=name))
                known = self._names.index(name)
                for callback in self.core.on_root:
                    callback(module, given)
            self._numbers[id(module)] = known
        return known

    def knows(self, module: Any) -> bool:
        return id(module) in self._numbers

    def fixed(self, call: Callable[..., Any], module: Any) -> Callable[..., Any]:
        """A root's call as the fixes want it; those that prepare a model do so first. They are
        given the model inside a wrapper that adds nothing."""
        inner = inside_wrapper(module)
        met = self._met.get(id(inner))
        if met is None or met() is not inner:
            self._met[id(inner)] = ref(inner)
            for prepare in self.core.on_first_call:
                prepare(inner)
        if inner is not module:
            call = functools.partial(_call_on, call, module)
        for handler in reversed(self.core.around_root):
            call = functools.partial(handler, call)
        return call if inner is module else functools.partial(_call_on, call, inner)

    def unobserved(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that is not timed; a root inside it is a part of it."""
        thread = get_ident()
        outermost = thread not in self.inside
        self.inside.add(thread)
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            if outermost:
                self.inside.discard(thread)

    def returned(self, module: Any, args: Any, kwargs: Any, grad: bool) -> None:
        """A root has returned: count its samples, end a row where that ends one."""
        which = self._numbers.get(id(module))
        if which is None:
            with unseen_by_program():
                which = self.number(module, (args, kwargs))
        if which < 0:
            return
        if not self.core.delivering:  # samples as a root receives them
            log = self.core.log
            row, backwards, root = self._counted
            if row != log.rows or (root == which and backwards != log.backwards):
                with unseen_by_program():
                    log.inputs += batch_size([*args, *kwargs.values()])
                self._counted = (log.rows, log.backwards, which)
        self.core.called(which, grad, bool(vars(module).get("training")))


_called_compiled: dict[int, ref[Any]] = {}  # models found in an OptimizedModule


def inside_wrapper(module: Any) -> Any:
    """The model in what only calls it, however deep."""
    while (inner := _wrapped(module)) is not None:
        if type(module).__name__ == "OptimizedModule":
            _called_compiled[id(inner)] = ref(inner)
        module = inner
    return module


def is_called_compiled(module: Any) -> bool:
    """Whether a model was found in an OptimizedModule, which calls it compiled."""
    found = _called_compiled.get(id(module))
    return found is not None and found() is module


def _wrapped(module: Any) -> Any:
    """What a wrapper wraps; None for other modules, and those with a forward of their own."""
    for cls in type(module).__mro__:
        wrapper = MODEL_WRAPPERS.get(cls.__name__)
        if wrapper is not None and cls.__module__.startswith(wrapper.package):
            several = len(vars(module).get("device_ids") or ()) > 1
            own = type(module).forward is not getattr(cls, "forward", None)
            return None if several or own else module._modules.get(wrapper.attribute)
    return None


def _call_on(call: Callable[..., Any], module: Any, _: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A call with another module in the place of the one it is made with."""
    return call(module, *args, **kwargs)


def _nesting(module: Any) -> int:
    """How many modules of its own class are nested into each other in a module, itself included."""
    cls, deepest, seen, todo = type(module), 0, {id(module)}, [(module, 1)]
    while todo:
        one, depth = todo.pop()
        deepest = max(deepest, depth)
        for inner in one._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                todo.append((inner, depth + (type(inner) is cls)))
    return deepest


_roots: RootModels | None = None
_compiles = False  # whether torch.compile or torch.export is in use


def patch_root_models(core: FixHost, patches: Patches) -> None:
    """Patch the calls of roots, for the clocks' and fixes' sake only."""
    global _roots
    before, _roots = _roots, RootModels(core, patches)
    core.roots = _roots
    if before is not None and before.core.log is None:
        _roots.take_over(before)
        core.on_end.append(functools.partial(_give_back, before))
    if torch.nn.Module.__call__ is _original:
        patches.set(torch.nn.Module, "__call__", _searching_call)
    _roots.search()
    core.on_step.append(_roots.step_ended)


def _give_back(before: RootModels) -> None:
    """Observing has ended where fixes act unobserved."""
    global _roots
    _roots = before


def patch_evaluation(core: Core, patches: Patches) -> None:
    """Patch `eval` of modules: it foretells calls that are no part of steps."""
    original = torch.nn.Module.eval

    @functools.wraps(original)
    def eval_(self: Any) -> Any:
        if not compiling():
            core.evaluation_begins()
        return original(self)

    patches.set(torch.nn.Module, "eval", eval_)


@functools.wraps(_original)
def _searching_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """On nn.Module while roots are searched for; the program may have kept it beyond that."""
    try:
        if compiling() or bypassed() or _roots is None:
            return _original(self, *args, **kwargs)
        if not _roots.searching or (_roots.core.log is not None and _roots.core.log.off):
            return _original(self, *args, **kwargs)
        if next(parameters_of(self), None) is None:
            return _original(self, *args, **kwargs)
        try:
            _roots.adopt(type(self))
        except Exception as problem:
            _roots.core.guard(problem)
        return timed_call(_original, (self, *args), kwargs, root=True)
    except BaseException as error:
        drop_caller_frame(error)
        raise


def compiling() -> bool:
    """Whether Dynamo or torch.jit is tracing this: then nothing that changes may be looked at."""
    return torch._C._is_tracing() or (_compiles and bool(is_compiling()))


def compiler_in_use() -> None:
    """From now on Dynamo may be tracing."""
    global _compiles
    _compiles = True
    if _roots is not None:
        _roots.core.compiles = True


def show_dynamo_the_original(nn_module: Any) -> None:
    """Dynamo looks through calls of modules that have the `__call__` it knows, and needs twice the
    frames for others. It remembers what it found when imported: ours, while roots are searched for.
    `nn_module` is torch._dynamo.variables.nn_module."""
    utils: Any = sys.modules["torch._dynamo.utils"]
    for module in (nn_module, utils):
        if getattr(module, "unpatched_nn_module_call", None) is _searching_call:
            module.unpatched_nn_module_call = _original


def bypassed() -> bool:
    """Whether calls go through untimed: inside a root, layers computed anew in backward, and while
    the clocks are off. Apart, so that what is put on a user's class refers to nothing here but
    functions by name."""
    if _roots is None or (_roots.core.log is not None and _roots.core.log.unclocked):
        return True
    return get_ident() in _roots.inside or _roots.core.runs_backward()


def _make_call(owner: type, own: Callable[..., Any] | None) -> Callable[..., Any]:
    """What times the calls of a class: of its own `__call__`, or of what stands on `owner`, the
    class it inherits it from, at each call."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        inner = own or owner.__call__
        try:
            if compiling() or bypassed():
                return inner(self, *args, **kwargs)
            return timed_call(inner, (self, *args), kwargs, root=True)
        except BaseException as error:
            drop_caller_frame(error)
            raise

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(__call__, name, getattr(own or owner.__call__, name, None))
    return __call__


def timed_call(call: Callable[..., Any], args: Any, kwargs: Any, root: bool) -> Any:
    """Make a call that computes, timed as `forward`; `root`: the first argument is a module."""
    roots, thread = _roots, get_ident()
    if roots is None or thread in roots.inside:
        return call(*args, **kwargs)
    core = roots.core
    log = core.log
    if root and roots.nests(args[0]):
        call = functools.partial(roots.aside, call)
    if root and core.fixing:
        call = roots.fixed(call, args[0])
    if log is None or log.off or (thread != log.thread and not log.claim(FORWARD)):
        try:
            result = roots.unobserved(call, args, kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        if log is None or not log.off:
            core.called_elsewhere()
        return result
    note = log.events.extend
    roots.inside.add(thread)
    begun = monotonic_ns()
    note((FORWARD, begun))
    grad = is_grad_enabled()
    if roots.searching:
        roots.unwatch()
    if core.device.timing:
        core.device.mark(FORWARD)
    measure = roots.measure if grad and root else None
    allocated = torch.cuda.memory_allocated() if measure else 0
    failed = False
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        failed = True
        drop_caller_frame(error)
        raise
    finally:
        roots.inside.discard(thread)
        now = monotonic_ns()
        note((LEAVE_TAIL if grad else LEAVE, now))
        try:
            if roots.searching:
                roots.watch()
            if core.find_lines or not grad:
                core.sites.add(core.sites.locate(_FORWARD if grad else _EVALUATION), now - begun)
            log.forwards += 1
            if measure:
                roots.measure = None
                measure(torch.cuda.memory_allocated() - allocated)
            if root and not failed:
                if grad and core.stepping and core.delivering and roots.knows(args[0]):
                    core.calls += 1
                else:
                    roots.returned(args[0], args[1:], kwargs, grad)
        except Exception as problem:
            core.guard(problem)
