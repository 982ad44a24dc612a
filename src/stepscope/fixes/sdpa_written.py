"""Attention that the program writes out by hand: found, named, and left to the user."""

import ast
import os
from types import CodeType
from typing import Any

from stepscope.fixes.base import Hands
from stepscope.fixes.lazy_source import tree_of
from stepscope.probe.sites import is_users

_PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm")


def name_it(module: Any, hands: Hands) -> None:
    """Say where a model's own layers multiply, take a softmax, and multiply again."""
    for cls in {type(layer) for layer in module.modules()}:
        code = getattr(getattr(cls, "forward", None), "__code__", None)
        if code is None or not is_users(code):
            continue
        line = _softmax_between_products(code)
        if line is not None:
            place = f"{os.path.basename(code.co_filename)}:{line}"
            hands.unfit(
                f"{cls.__qualname__} writes its attention out at {place}; "
                "use torch.nn.functional.scaled_dot_product_attention there"
            )


def _softmax_between_products(code: CodeType) -> int | None:
    """The line of a softmax with a product before and after it, in one function."""
    tree = tree_of(code.co_filename)
    if tree is None:
        return None
    for function in ast.walk(tree.root):
        if not isinstance(function, ast.FunctionDef) or not _is_of(function, code):
            continue
        inside = [node for node in ast.walk(function) if isinstance(node, ast.expr)]
        products = [node.lineno for node in inside if _is_product(node)]
        for node in inside:
            softmax = isinstance(node, ast.Call) and "softmax" in _called(node)
            if softmax and len(products) > 1 and min(products) <= node.lineno <= max(products):
                return node.lineno
    return None


def _is_of(function: ast.FunctionDef, code: CodeType) -> bool:
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    return function.name == code.co_name and first == code.co_firstlineno


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and _called(node) in _PRODUCTS


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
