"""The entry point: parse, take defaults from pyproject.toml, dispatch, turn our own errors into one
line and an exit code.
"""

import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.version import __version__


def defaults(cwd: Path | None = None) -> dict[str, Any]:
    """Option defaults per command, as in `[tool.stepscope.run] window = 4`. Empty without any."""
    here = (cwd or Path.cwd()).absolute()
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return {}
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path} is not TOML: {problem}") from None
    except OSError:
        return {}
    table = tool.get("stepscope", {}) if isinstance(tool, dict) else None
    if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
        raise UsageError(f"{path}: [tool.stepscope] holds one table per command")
    return {
        command: {name.replace("-", "_"): value for name, value in options.items()}
        for command, options in table.items()
    }


COMMANDS = {
    "run": "Observe a program: where does each step's time go?",
    "show": "Print an earlier result.",
    "runs": "List the results kept here, or tidy them up.",
    "analyze": "Explain a trace from any profiler.",
    "tune": "Find the fixes that help, and prove that losses still match.",
    "fixes": "List the fixes that can be applied at run time.",
    "batch": "Find the best batch size: throughput, memory, the knee.",
    "bench": "Benchmark models here: training, inference, generation.",
    "compare": "Is one result faster than another, by how much, and why?",
    "report": "Write a result as a page, document, notebook, tables or images.",
    "doctor": "Show this machine and what can be measured on it.",
    "demo": "Run the whole loop on a bundled slow program.",
}


_OTHER_WORDS = {"benchmark": "bench", "diff": "compare", "optimize": "tune", "trace": "analyze"}
"""What other tools call some of them."""


class Commands(click.Group):
    """Imports a command's module only when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"stepscope.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, with defaults read from pyproject.toml and checked."""
        name, command, rest = super().resolve_command(ctx, _meant(args))
        ctx.default_map = defaults()
        known = {parameter.name for parameter in command.params} if command else set()
        for option in ctx.default_map.get(name or "", {}):
            if option not in known:
                where = f"pyproject.toml: [tool.stepscope.{name}]"
                raise UsageError(f"{where} has no option {option}: see stepscope {name} --help")
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _meant(args: list[str]) -> list[str]:
    """`run` in front of a script without a command, and for `profile`. Raises UsageError with the
    command that an unknown one resembles."""
    name = args[0]
    if name in COMMANDS:
        return args
    if name.endswith(".py"):
        return ["run", *args]
    if name == "profile":
        return ["run", *args[1:]]
    from difflib import get_close_matches

    close = get_close_matches(_OTHER_WORDS.get(name, name), COMMANDS, n=1)
    known = f"did you mean {close[0]}?" if close else "see stepscope --help"
    raise UsageError(f"{name!r} is not a command: {known}")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stepscope")
def stepscope() -> None:
    """Why is this PyTorch program slow, and what makes it fast?

    Put it in front of a program: stepscope run train.py --epochs 3
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; never returns."""
    if sys.stderr is None:  # stderr is closed: none of our files may become descriptor 2
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        result: Any = stepscope.main(arguments, prog_name="stepscope", standalone_mode=False)
    except StepscopeError as problem:
        fail(str(problem), problem.exit_code)
    except click.ClickException as problem:
        message = problem.format_message()
        if "\n" in message:  # the full help, when the user asked for it
            problem.show()
            sys.exit(problem.exit_code)
        context = getattr(problem, "ctx", None)
        command = context.command_path if context is not None else "stepscope"
        fail(f"{message.rstrip('.')} (see {command} --help)", problem.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    sys.exit(result if isinstance(result, int) else 0)


_LONGEST = 1000  # characters of an error: it may quote a damaged file


def fail(text: str, exit_code: int) -> None:
    """Print one line on stderr and exit."""
    from stepscope.report.text import keep_start, one_line

    print(f"stepscope: {keep_start(one_line(text), _LONGEST)}", file=sys.stderr)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
