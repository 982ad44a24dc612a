"""Reading tensors unseen by the program's modes, Tensor subclasses and profiler, and modules unseen
by what their classes override."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import _C, Tensor
from torch._C import _autograd
from torch.autograd import profiler
from torch.overrides import TorchFunctionMode

from stepscope.probe.sites import is_user_code


def unseen_by_program() -> AbstractContextManager[Any]:
    """Inside it, modes of the program (TorchFunctionMode, TorchDispatchMode) and its subclasses of
    Tensor that override functions see no call."""
    dispatching = _C._len_torch_dispatch_stack()
    return _undispatched() if dispatching else _C.DisableTorchFunction()


@contextmanager
def _undispatched() -> Iterator[None]:
    with _C.DisableTorchFunction(), _C._DisableTorchDispatch():
        yield


@contextmanager
def unrecorded() -> Iterator[None]:
    """The same, and the program's profiler records no operator."""
    profiled = _autograd._profiler_enabled()
    if profiled:
        _autograd._enable_record_function(False)
    try:
        with unseen_by_program():
            yield
    finally:
        if profiled:
            _autograd._enable_record_function(True)


def modules_of(module: Any) -> Iterator[Any]:
    """A module and all inside it, each once. They need not be hashable, as torch's own search wants
    them."""
    seen, todo = {id(module)}, [module]
    while todo:
        one = todo.pop()
        yield one
        for inner in reversed([*one._modules.values()]):
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                todo.append(inner)


def parameters_of(module: Any) -> Iterator[Any]:
    """The parameters of a module and of all inside it, each once."""
    seen: set[int] = set()
    for one in modules_of(module):
        for parameter in one._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def is_profiled() -> bool:
    """Whether one of torch's profilers is on, in any thread."""
    return bool(profiler._is_profiler_enabled)


def is_plain(value: Any) -> bool:
    """Whether reading a value is torch's own affair: not one of a subclass of the program's."""
    kind = type(value)
    return kind is Tensor or (isinstance(value, Tensor) and kind.__module__.startswith("torch."))


def read_unseen(value: Any, read: Callable[[Any], None]) -> None:
    """Read a plain tensor without the program's profiler or modes recording it. One that cannot be
    read, as in a transform of torch.func, is left alone."""
    profiled = _autograd._profiler_enabled()
    if profiled:
        _autograd._enable_record_function(False)
    try:
        if _C._len_torch_dispatch_stack():
            with _C._DisableTorchDispatch():
                read(value)
        else:
            read(value)
    except (RuntimeError, NotImplementedError):
        return
    finally:
        if profiled:
            _autograd._enable_record_function(True)


def own_function_modes() -> list[str]:
    """Torch function modes that the program itself defines. torch's recorder of Python stacks asks
    for gradients through them."""
    found, todo = [], list(TorchFunctionMode.__subclasses__())
    while todo:
        mode = todo.pop()
        todo += mode.__subclasses__()
        code = getattr(vars(mode).get("__torch_function__"), "__code__", None)
        if code is not None and is_user_code(code):
            found.append(mode.__qualname__)
    return found
