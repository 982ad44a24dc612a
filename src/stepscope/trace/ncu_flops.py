"""Floating-point operations of a kernel from instruction and tensor-core counters."""

import re
from collections.abc import Mapping
from itertools import product

_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_WEIGHTS = {"add": 1, "mul": 1, "fma": 2}

# Operations for each instruction of a thread. Half-precision instructions work on two values;
# so do the paired fp32 ones (fadd2 …) that exist from compute capability 10 on.
SCALAR = {
    _SASS.format(kind + operation): weight * (2 if kind == "h" else 1)
    for kind, (operation, weight) in product("fdh", _WEIGHTS.items())
}
_PAIRED = {_SASS.format(f"f{name}2"): 2 * weight for name, weight in _WEIGHTS.items()}
_SINGLE = [_SASS.format("f" + operation) for operation in _WEIGHTS]

_TENSOR = re.compile(
    r"sm__ops_path_tensor(?:_op_(?P<op>[a-z]+))?_src_(?P<src>\w+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)
_PIPE = "sm__inst_executed_pipe_tensor.sum"


def scalar_flops(metrics: Mapping[str, float]) -> float | None:
    """Operations outside the tensor cores; None unless the fp32 instructions were counted."""
    if not all(name in metrics for name in _SINGLE):
        return None
    return sum(metrics.get(name, 0.0) * w for name, w in (SCALAR | _PAIRED).items())


def tensor_flops(metrics: Mapping[str, float]) -> float | None:
    """Operations of the tensor cores, two for each multiply-add; None where not counted.

    Counters overlap (fp16 is the sum of fp16 into fp16 and fp16 into fp32, and each of those of
    sparse and dense): one that another covers is left out. Integer operations do not count.
    """
    found = {name: match for name in metrics if (match := _TENSOR.fullmatch(name))}
    if not found:
        return 0.0 if metrics.get(_PIPE) == 0 else None
    floating = {n: m for n, m in found.items() if "int" not in m["src"]}
    return sum(
        metrics[name]
        for name, match in floating.items()
        if not any(_covers(other, match) for n, other in floating.items() if n != name)
    )


def _covers(general: re.Match[str], special: re.Match[str]) -> bool:
    return set(special["src"].split("_")) <= set(general["src"].split("_")) and all(
        general[part] in (None, special[part]) for part in ("op", "dst", "sparsity")
    )
