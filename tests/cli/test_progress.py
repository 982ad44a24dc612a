"""The progress display: lines in a pipe, nothing when quiet, a bar on a terminal."""

import io
import sys

import click
import pytest
from click.testing import CliRunner

from stepscope.cli.progress import note_misplaced, progress, time_left
from stepscope.launch.program import Program


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_one_clean_line_per_finished_part(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress() as shown:
        shown.update("trial 1", 0, 2)
        shown.line("trial 1: 12 ms \x1b[31m")
    assert stream.getvalue() == "trial 1: 12 ms ·[31m\n"


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(quiet=True) as shown:
        shown.update("trial 1")
        shown.line("trial 1: 12 ms")
    assert stream.getvalue() == ""


def test_a_terminal_shows_what_is_under_way_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress() as shown:
        shown.update("batch 32", 1, 4, time_left(200.0))
        shown.line("batch 16: 400 samples/s")
    text = stream.getvalue()
    assert "batch 16: 400 samples/s" in text
    assert "1/4  3 min 20 s left" in text


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True)
@click.option("--budget")
@click.option("--steps", type=int)
@click.option("--json", is_flag=True)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def trying(module, program, arguments, **options):
    note_misplaced(Program(program, arguments, module))


DECLARES = 'parser.add_argument("--steps")\nbudget = 3\n'


@pytest.mark.parametrize(
    ("source", "given", "said"),
    [
        (
            "pass",
            "cnn.py --budget 90s",
            "--budget belongs before cnn.py: trying --budget 90s cnn.py",
        ),
        (DECLARES, "cnn.py --steps 3 --budget=9s x", "trying --budget=9s cnn.py --steps 3 x"),
        ("pass", "cnn.py a --json --steps 5", "--json and --steps belong before cnn.py: trying"),
        ("pass", "-m cnn --steps 5", "--steps belongs before cnn: trying --steps 5 -m cnn"),
        ("pass", "cnn.py --epochs 3", None),
        ("pass", "cnn.py -- --steps 3", None),
        ("pass", "--steps 3 cnn.py", None),
        ("steps: int = 4", "cnn.py --steps 3", None),
        ('args["--steps"]', "cnn.py --steps 3", None),
        (None, "cnn.py --steps 3", None),
    ],
)
def test_an_option_after_a_program_that_does_not_know_it_is_said(
    source, given, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "cnn.py").write_text(source)
    found = CliRunner().invoke(trying, given.split(), catch_exceptions=False)
    told = found.stderr.replace("stepscope trying", "trying")
    assert told == "" if said is None else (said in told and told.count("\n") == 1)


def test_a_command_that_holds_a_secret_is_not_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cnn.py").write_text("pass")
    given = ["cnn.py", "--token", "hf_AbCdEfGhIjKlMnOpQrStUvWx", "--steps", "3"]
    found = CliRunner().invoke(trying, given, catch_exceptions=False)
    assert found.stderr == "stepscope: --steps belongs before cnn.py\n"
