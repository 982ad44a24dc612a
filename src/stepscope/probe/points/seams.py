"""Where fixes change torch.

A seam is a function of torch that calls handlers around it; it is patched when the first handler
comes, so a program without fixes meets none. Seams are in place before the observer's own points:
what a fix changes lies inside what is timed. In forked children and while Dynamo traces, every
seam lets calls through untouched.
"""

import functools
import inspect
from collections.abc import Callable
from copy import copy
from typing import Any
from uuid import uuid4

import torch
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from stepscope.probe.patches import Patches

Handler = Callable[..., Any]

_chains: dict[str, tuple["FixHost", "_Chain"]] = {}


class Gate:
    """Whether what was subscribed through it acts."""

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.chains: list[_Chain] = []

    def turn(self, on: bool) -> None:
        """Let handlers act, or let calls pass them by. Calls under way go on as they began."""
        self.on = on
        for chain in self.chains:
            chain.settle()


class _Chain:
    """The handlers around one function, the outermost first."""

    def __init__(self) -> None:
        self._all: list[tuple[Handler, Gate]] = []
        self.acting: tuple[Handler, ...] = ()

    def add(self, handler: Handler, gate: Gate) -> None:
        self._all.append((handler, gate))
        gate.chains.append(self)
        self.settle()

    def settle(self) -> None:
        """Look again which gates are open."""
        self.acting = tuple(handler for handler, gate in self._all if gate.on)


class FixHost:
    """What fixes ask of the process they act in, observed or not."""

    log: Any = None
    """None: nothing is observed."""

    def __init__(self, fixes: tuple[str, ...] = ()) -> None:
        self.fixes = [*fixes]
        """As the user wrote them."""
        self.placed: dict[str, Any] = {}
        """The context of each fix that was to be installed, by name."""
        self.inert = False
        """Whether seams let all calls through, as in forked children."""
        self.fixing = False
        """Whether any fix wants to know of root models, or came while the program ran."""
        self.steps = 0
        self.on_step: list[Callable[[int], int]] = []
        """Called after a step; each says from which step on it wants to be called again."""
        self.on_first_call: list[Callable[[Any], None]] = []
        """Called with a root model before its first call."""
        self.around_root: list[Callable[..., Any]] = []
        """Called around every call of a root model, as `handler(call, module, …)`."""
        self.on_end: list[Callable[[], None]] = []
        self.roots: Any = None
        self.optimizer_point: Any = None
        self.compiles = False
        """Whether torch.compile or torch.export is in use: only then can Dynamo be tracing us."""

    def report(self, fix: str, **said: Any) -> None:
        """A fix tells what it did, or why it did nothing."""
        raise NotImplementedError

    def wake(self) -> None:
        """Call the callbacks of steps after the next one."""

    def runs_backward(self) -> bool:
        """Whether the calling thread is inside a backward."""
        return bool(torch._C._current_graph_task_id() != -1)

    def called_elsewhere(self) -> None:
        """A root model has returned, unobserved."""

    def step_skipped(self, optimizer: Any) -> None:
        """A fix has skipped an optimizer's step, which ends a step all the same."""

    def guard(self, problem: Exception) -> None:
        """A fault of our own, which never reaches the program."""


_ALWAYS = Gate()


class Seams:
    """The points at which fixes may change what the program does."""

    def __init__(self, core: FixHost, patches: Patches) -> None:
        self.core = core
        self._patches = patches
        self._chains: dict[tuple[int, str], _Chain] = {}
        self._gate = _ALWAYS

    def behind(self, gate: Gate) -> "Seams":
        """The same points for handlers that act only while a gate is open. What a fix is told of
        new loaders and optimizers passes it too."""
        view = copy(self)
        view._gate = gate
        return view

    def around(self, owner: Any, name: str, handler: Handler) -> None:
        """Have `owner.name(...)` become `handler(call, ...)`, where `call` goes on with it. Of
        several handlers the one that came first is outermost."""
        self._weave(owner, name, handler, self._gate)

    def _weave(self, owner: Any, name: str, handler: Handler, gate: Gate) -> None:
        chain = self._chains.get((id(owner), name))
        if chain is None:
            chain = self._chains[id(owner), name] = _Chain()
            mark = uuid4().hex
            _chains[mark] = self.core, chain
            self._patches.set(owner, name, _woven(getattr(owner, name), mark))
        chain.add(handler, gate)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Have another value at `owner.name`, in forked children too."""
        self._patches.set(owner, name, value)

    def unseen(self, call: Handler, *args: Any, **kwargs: Any) -> Any:
        """A call in which no root model is looked for, as of layers computed anew in backward."""
        roots = self.core.roots
        return call(*args, **kwargs) if roots is None else roots.unobserved(call, args, kwargs)

    def left_out(self) -> None:
        """An optimizer step that a GradScaler was asked for is left out: it ends no step."""
        if self.core.optimizer_point is not None:
            self.core.optimizer_point.fired += 1

    def loader_made(self, handler: Callable[[dict[str, Any]], None]) -> None:
        """`handler(arguments)` may change what a DataLoader is made with. The arguments are named,
        `self` left out; those the program did not give are not there."""
        signature = inspect.signature(DataLoader.__init__)

        def made(call: Handler, loader: Any, *args: Any, **kwargs: Any) -> None:
            arguments = dict(signature.bind(loader, *args, **kwargs).arguments)
            arguments.pop("self")
            handler(arguments)
            call(loader, **arguments)

        self.around(DataLoader, "__init__", made)

    def loader_iterated(self, handler: Callable[[Handler, Any], Any]) -> None:
        """`handler(make, loader)` returns an epoch's iterator; `make(loader)` is the usual one."""
        self.around(DataLoader, "__iter__", handler)

    def moved(self, handler: Handler) -> None:
        """`handler(call, tensor, *args, **kwargs)` around `Tensor.to` and `Tensor.cuda`."""
        self.around(torch.Tensor, "to", handler)
        self.around(torch.Tensor, "cuda", handler)

    def root_found(self, handler: Callable[[Any], None]) -> None:
        """`handler(module)` once for every root model, before its first call."""
        self.core.on_first_call.append(handler)
        self.core.fixing = True

    def root_called(self, handler: Handler) -> None:
        """`handler(call, module, *args, **kwargs)` around every call of a root model."""
        gate = self._gate

        def gated(call: Handler, module: Any, *args: Any, **kwargs: Any) -> Any:
            if gate.on:
                return handler(call, module, *args, **kwargs)
            return call(module, *args, **kwargs)

        self.core.around_root.append(gated)
        self.core.fixing = True

    def backward(self, handler: Handler) -> None:
        """`handler(call, tensors, *args, **kwargs)` around `torch.autograd.backward`."""
        self.around(torch.autograd, "backward", handler)

    def optimizer_made(self, handler: Callable[[Any, dict[str, Any]], None]) -> None:
        """`handler(optimizer, defaults)` may change the defaults an optimizer is made with."""

        def made(call: Handler, optimizer: Any, params: Any, defaults: Any) -> None:
            defaults = dict(defaults)
            handler(optimizer, defaults)
            call(optimizer, params, defaults)

        self.around(Optimizer, "__init__", made)

    def optimizer_stepped(self, handler: Handler) -> None:
        """`handler(call, optimizer, *args, **kwargs)` around `step` of every optimizer. The hooks
        of a step, the observer's included, run inside `call` only."""
        seen: set[type] = set()
        inside: set[int] = set()  # a step may call the step of its base class

        def stepped(call: Handler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if id(optimizer) in inside:
                return call(optimizer, *args, **kwargs)
            inside.add(id(optimizer))
            try:
                return handler(call, optimizer, *args, **kwargs)
            finally:
                inside.discard(id(optimizer))

        def made(call: Handler, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            call(optimizer, *args, **kwargs)
            cls = next(base for base in type(optimizer).__mro__ if "step" in vars(base))
            if cls not in seen:
                seen.add(cls)
                self.around(cls, "step", stepped)

        self._weave(Optimizer, "__init__", made, _ALWAYS)  # classes are met whether it acts or not

    def synchronised(self, handler: Handler) -> None:
        """`handler(call, *args, **kwargs)` around `torch.cuda.synchronize`."""
        self.around(torch.cuda, "synchronize", handler)


def _woven(original: Any, mark: str) -> Any:
    """A function with a chain around it, which it knows by its mark only: so what stands on a
    user's class can be pickled by value."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return through(mark, original, args, kwargs)

    return call


def through(mark: str, original: Any, args: Any, kwargs: Any) -> Any:
    """Call a function through a chain; straight where there is none, as in another process."""
    if mark not in _chains:
        return original(*args, **kwargs)
    core, chain = _chains[mark]
    handlers = chain.acting
    if not handlers or core.inert or (core.compiles and is_compiling()):
        return original(*args, **kwargs)

    def enter(place: int, *args: Any, **kwargs: Any) -> Any:
        if place == len(handlers):
            return original(*args, **kwargs)
        return handlers[place](functools.partial(enter, place + 1), *args, **kwargs)

    return enter(0, *args, **kwargs)
