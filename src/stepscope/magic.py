"""`%%stepscope`: runs a notebook's cell observed, and shows the report below it."""

import ast
import linecache
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from types import CodeType
from typing import Any, NoReturn

from stepscope.api import Observed, observe
from stepscope.record.errors import StepscopeError, UsageError


def register(shell: Any) -> None:
    """Give an IPython shell the magic."""

    def stepscope(line: str, cell: str) -> Any:
        __tracebackhide__ = True
        return _observed(shell, line, cell)

    stepscope.__doc__ = _parser().format_help()
    shell.register_magic_function(stepscope, "cell", "stepscope")


def _observed(shell: Any, line: str, cell: str) -> Any:
    """Run the cell observed; returns the value of its last expression, and propagates its
    exceptions."""
    from IPython.core.error import UsageError as Complaint

    __tracebackhide__ = True
    try:
        asked = _parser().parse_args(shlex.split(line))
    except (StepscopeError, ValueError) as problem:
        raise Complaint(f"%%stepscope: {problem}") from None
    name = f"In[{len(shell.user_ns['In']) - 1}]"
    body, last = _compiled(shell, f"%%stepscope {line}".rstrip(), cell, name)
    observed: Observed | None = None
    value = None
    try:
        with observe(
            asked.out, window=asked.window, steps=asked.steps, force=asked.force, program=name
        ) as observed:
            exec(body, shell.user_ns)
            value = eval(last, shell.user_ns) if last is not None else None
    except StepscopeError as problem:
        if observed is None:
            raise Complaint(f"%%stepscope: {problem}") from None
        raise
    finally:
        if observed is not None:
            _display_result(shell, asked, observed)
    return None if cell.rstrip().endswith(";") else value


def _compiled(shell: Any, first: str, cell: str, name: str) -> tuple[CodeType, CodeType | None]:
    """The cell's code and, separately, its last expression.

    Line numbers start at the magic's line, as the notebook shows them.
    """
    source = shell.transform_cell(cell)
    tree = ast.increment_lineno(shell.transform_ast(ast.parse(source, name)), 1)
    text = f"{first}\n{source}"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    ending = None
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body.pop()
        ending = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), ending


def _display_result(shell: Any, asked: Namespace, observed: Observed) -> None:
    """Store the result under the requested name, and show its report."""
    from IPython.display import display

    result = observed.result
    if asked.name is not None:
        shell.user_ns[asked.name] = result
    if asked.quiet:
        return
    try:
        display(result.report())
    except StepscopeError as problem:  # without plotly: print the screen instead
        print(f"{result!r}\n\nstepscope: {problem}")


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> ArgumentParser:
    parser = _Parser(prog="%%stepscope", description="Observe the cell as it runs.", add_help=False)
    add = parser.add_argument
    add("--window", type=_count, default=6, help="steps to record at kernel level (6)")
    add("--steps", type=_count, help="stop the cell after this many steps")
    add("--out", help="run folder (.stepscope/<id>)")
    add("--force", action="store_true", help="replace an existing run in --out")
    add("--as", dest="name", type=_name, help="store the result in this variable")
    add("--quiet", action="store_true", help="show no report")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _name(text: str) -> str:
    if not text.isidentifier():
        raise ArgumentTypeError(f"{text!r} is not a variable name")
    return text
