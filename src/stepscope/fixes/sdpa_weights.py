"""nn.MultiheadAttention, asked for weights that nobody looks at: without them it is fused."""

import ast
import sys
from types import CodeType, FrameType
from typing import Any

from stepscope.fixes.base import Hands
from stepscope.fixes.lazy_callers import PACKAGE_FOLDER
from stepscope.fixes.lazy_source import Tree, call_made_by
from stepscope.fixes.lazy_uses import mentions

_NEED_WEIGHTS = 3  # its place among the arguments that may follow the query


def drop_unused(hands: Hands) -> None:
    """Pass need_weights=False where the source shows that the weights are dropped."""
    import torch

    known: dict[tuple[CodeType, int], bool] = {}
    passed = (torch.__path__[0], PACKAGE_FOLDER)

    def forward(call: Any, module: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[_NEED_WEIGHTS] if len(args) > _NEED_WEIGHTS else kwargs.get("need_weights")
        if given is False or not _dropped(passed, known, hands):
            return call(module, query, *args, **kwargs)
        if len(args) > _NEED_WEIGHTS:
            args = (*args[:_NEED_WEIGHTS], False, *args[_NEED_WEIGHTS + 1 :])
        else:
            kwargs["need_weights"] = False
        return call(module, query, *args, **kwargs)

    hands.seams.around(torch.nn.MultiheadAttention, "forward", forward)


def _dropped(
    passed: tuple[str, str], known: dict[tuple[CodeType, int], bool], hands: Hands
) -> bool:
    """Whether the call under way drops the weights; looked at once for each place."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    if frame is None:
        return False
    site = (frame.f_code, frame.f_lasti)
    if site not in known:
        found = call_made_by(frame)
        known[site] = found is not None and drops_second(*found)
        if known[site]:
            hands.applied(f"MultiheadAttention at {hands.place()}, whose weights are not used")
        else:
            hands.unfit(
                f"the weights that MultiheadAttention at {hands.place()} returns may be used; "
                "pass need_weights=False if they are not"
            )
    return known[site]


def drops_second(call: ast.Call, tree: Tree) -> bool:
    """Whether of the pair a call returns only the first is used."""
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
                for node in mentions(scope, name)
            )
    return False
