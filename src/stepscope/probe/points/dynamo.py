"""Keep Dynamo's hands off our own functions: it would compile them where a graph breaks."""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def leave_alone(eval_frame: Any) -> None:
    """Have our functions run as they are; `eval_frame` is torch._dynamo's."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("stepscope.probe", "stepscope.store", "stepscope.fixes")):
            for code in _codes(module):
                eval_frame.skip_code(code)


def compile_counters() -> dict[str, Any] | None:
    """What Dynamo counted: graphs, breaks and their reasons, recompilations; None if it compiled
    nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not utils.counters["frames"].get("total", 0):
        return None
    counters = utils.counters
    return {
        "graphs": int(counters["stats"].get("unique_graphs", 0)),
        "calls_captured": int(counters["stats"].get("calls_captured", 0)),
        "graph_breaks": int(sum(counters["graph_break"].values())),
        "break_reasons": [str(key)[:200] for key in list(counters["graph_break"])[:5]],
        "recompiles": _recompiles(utils.get_compilation_metrics()),
        "frames": int(counters["frames"]["total"]),
    }


def _recompiles(metrics: list[Any]) -> int:
    """Compilations of code that had been compiled before: their ids end in other than /0."""
    return sum(not str(metric.compile_id).endswith("/0") for metric in metrics)


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
