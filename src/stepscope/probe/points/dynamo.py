"""Keep Dynamo's hands off our own functions: it would compile them where a graph breaks."""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def leave_alone(eval_frame: Any) -> None:
    """Mark the probe's functions to be run as they are; `eval_frame` is torch._dynamo's."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("stepscope.probe", "stepscope.store")):
            for code in _codes(module):
                eval_frame.skip_code(code)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        functions = vars(value).values() if isinstance(value, type) else [value]
        for function in functions:
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
