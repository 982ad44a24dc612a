"""`%%stepscope`: runs a notebook's cell observed, and shows the report below it."""

import ast
import linecache
import shlex
from types import CodeType
from typing import Any

import click

from stepscope.api import Observed, observe
from stepscope.cli.run import run
from stepscope.record.errors import StepscopeError


def register(shell: Any) -> None:
    """Give an IPython shell the magic."""

    def stepscope(line: str, cell: str) -> Any:
        __tracebackhide__ = True
        return _observed(shell, line, cell)

    command = _command()
    stepscope.__doc__ = command.get_help(click.Context(command, info_name=command.name))
    shell.register_magic_function(stepscope, "cell", "stepscope")


def _observed(shell: Any, line: str, cell: str) -> Any:
    """Run the cell observed; returns the value of its last expression, and propagates its
    exceptions."""
    from IPython.core.error import UsageError as Complaint

    __tracebackhide__ = True
    try:
        asked = _command().make_context("%%stepscope", shlex.split(line)).params
    except click.ClickException as problem:
        raise Complaint(f"%%stepscope: {problem.format_message()}") from None
    except ValueError as problem:
        raise Complaint(f"%%stepscope: {problem}") from None
    name = f"In[{len(shell.user_ns['In']) - 1}]"
    body, last = _compiled(shell, f"%%stepscope {line}".rstrip(), cell, name)
    observed: Observed | None = None
    value = None
    try:
        with observe(program=name, **{key: asked[key] for key in _OF_RUN}) as observed:
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


def _display_result(shell: Any, asked: dict[str, Any], observed: Observed) -> None:
    """Store the result under the requested name, and show its report."""
    from IPython.display import display

    result = observed.result
    if asked["name"] is not None:
        shell.user_ns[asked["name"]] = result
    if asked["quiet"]:
        return
    try:
        display(result.report())
    except StepscopeError as problem:  # without plotly: print the screen instead
        print(f"{result!r}\n\nstepscope: {problem}")


_OF_RUN = ("window", "steps", "out", "force")


def _command() -> click.Command:
    """The magic's options: some of `stepscope run` and its own."""
    name = click.Option(["--as", "name"], callback=_variable, help="Store the result in this name.")
    quiet = click.Option(["--quiet"], is_flag=True, help="Show no report.")
    params = [*(one for one in run.params if one.name in _OF_RUN), name, quiet]
    about = "Observe the cell as it runs."
    return click.Command("%%stepscope", params=params, help=about, add_help_option=False)


def _variable(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is not None and not name.isidentifier():
        raise click.BadParameter(f"{name!r} is not a variable name")
    return name
