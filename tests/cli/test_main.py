"""The entry point: dispatch, errors as one line, defaults from pyproject.toml."""

import runpy

import click
import pytest

from stepscope import __version__
from stepscope.cli.main import COMMANDS, defaults, main, stepscope
from stepscope.record.errors import BrokenRun, MissingExtra, StepscopeError, UsageError


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs the command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def command(monkeypatch):
    """A command of our own in the place of `show`, doing what it is given."""

    def command(action, *options):
        made = click.Command("show", callback=action, params=list(options))
        monkeypatch.setattr(stepscope, "get_command", lambda context, name: made)

    return command


REST = click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)


def fails(problem):
    def action(**_):
        raise problem

    return action


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(run, flag):
    code, out, err = run(flag)
    assert (code, err) == (0, "")
    for name, words in COMMANDS.items():
        assert name in out
        assert words.split()[0] in out


def test_every_command_exists_and_explains_itself(run):
    for name in COMMANDS:
        code, out, _ = run(name, "--help")
        assert code == 0
        assert name in out


def test_the_version(run):
    assert run("--version") == (0, f"stepscope, version {__version__}\n", "")


def test_it_is_a_module_to_run_too(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["stepscope", "--version"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("stepscope", run_name="__main__")
    assert (caught.value.code, capsys.readouterr().out) == (
        0,
        f"stepscope, version {__version__}\n",
    )


def test_an_unknown_command_is_named(run):
    code, out, err = run("frobnicate")
    assert (code, out) == (2, "")
    assert "frobnicate" in err


@pytest.mark.parametrize(
    ("typed", "meant"), [("runn", "run"), ("tuen", "tune"), ("diff", "compare"), ("shwo", "show")]
)
def test_a_command_like_a_known_one_gets_a_suggestion(run, typed, meant):
    code, out, err = run(typed, "train.py")
    assert (code, out) == (2, "")
    assert err == f"stepscope: {typed!r} is not a command: did you mean {meant}?\n"


@pytest.mark.parametrize("words", [("train.py", "--epochs", "3"), ("profile", "train.py")])
def test_a_script_without_a_command_and_profile_mean_run(run, monkeypatch, words):
    taken = []
    made = click.Command("run", callback=lambda rest: taken.append(rest), params=[REST])
    made.ignore_unknown_options = True
    monkeypatch.setattr(stepscope, "get_command", lambda _, name: made if name == "run" else None)
    assert run(*words) == (0, "", "")
    assert taken == [tuple(word for word in words if word != "profile")]


def test_an_unknown_option_is_named(run):
    code, out, err = run("run", "--frobnicate", "train.py")
    assert (code, out) == (2, "")
    assert "--frobnicate" in err


def test_no_command_shows_the_help_and_is_no_traceback(run):
    code, out, err = run()
    assert code in (0, 2)
    assert "run" in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "problem",
    [
        StepscopeError("something"),
        UsageError("no such file: train.py"),
        BrokenRun("run.json cannot be read"),
        MissingExtra("memray", "memory", "--memory"),
    ],
)
def test_our_own_errors_are_one_line_and_exit_code_2(run, command, problem):
    command(fails(problem))
    assert run("show") == (2, "", f"stepscope: {problem}\n")


def test_an_error_with_several_lines_is_printed_as_one(run, command):
    command(fails(UsageError("no such file: a\nb\x1b[2J.py")))
    code, _, err = run("show")
    assert code == 2
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_missing_extra_says_what_to_install(run, command):
    command(fails(MissingExtra("py-spy", "python", "--python")))
    assert "pip install 'stepscope[python]'" in run("show")[2]


def test_what_a_command_returns_is_the_exit_code(run, command):
    command(lambda: 7)
    assert run("show")[0] == 7


def test_a_command_that_returns_nothing_is_fine(run, command):
    command(lambda: None)
    assert run("show") == (0, "", "")


def test_an_interrupt_is_130(run, command):
    command(fails(click.exceptions.Abort()))
    assert run("show")[0] == 130


def test_show_without_a_run_says_what_to_type(run):
    code, out, err = run("show")
    assert (code, out) == (2, "")
    assert err.startswith("stepscope: ")
    assert "stepscope run" in err
    assert err.count("\n") == 1


def test_running_nothing_says_so(run):
    code, _, err = run("run")
    assert code == 2
    assert "PROGRAM" in err


def test_a_program_that_is_not_there_is_one_line(run, monkeypatch):
    code, out, err = run("run", "nothing.py")
    assert (code, out) == (2, "")
    assert err == "stepscope: no such file: nothing.py\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [("steps", 0), ("window", 0), ("timeout", 0), ("repeat", 0), ("window-at", 1), ("warmup", -1)],
)
def test_numbers_that_make_no_sense_are_refused(run, option, value):
    code, _, err = run("run", f"--{option}={value}", "train.py")
    assert code == 2
    assert f"--{option}" in err


def write(folder, text):
    (folder / "pyproject.toml").write_text(text)


def test_defaults_come_from_pyproject(tmp_path):
    write(tmp_path, "[tool.stepscope.run]\nwindow = 4\nwindow-at = 20\nno-window = true\n")
    assert defaults(tmp_path) == {"run": {"window": 4, "window_at": 20, "no_window": True}}


def test_defaults_come_from_the_nearest_pyproject_above(tmp_path):
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    write(tmp_path, "[tool.stepscope.run]\nwindow = 4\n")
    assert defaults(inner) == {"run": {"window": 4}}
    write(tmp_path / "a", "[project]\nname = 'x'\n")
    assert defaults(inner) == {}


def test_without_a_pyproject_there_are_no_defaults(tmp_path):
    assert defaults(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "not toml = = 1",
        "[tool]\nstepscope = 3\n",
        "[tool.stepscope]\nwindow = 4\n",
        "tool = 3\n",
        "[tool]\nstepscope = []\n",
    ],
)
def test_a_pyproject_that_makes_no_sense_is_one_clear_line(run, tmp_path, text):
    write(tmp_path, text)
    code, out, err = run("show")
    assert (code, out) == (2, "")
    assert "pyproject.toml" in err
    assert err.count("\n") == 1


def test_a_default_reaches_its_command_and_the_command_line_wins(run, tmp_path, command):
    write(tmp_path, "[tool.stepscope.show]\nwindow = 4\n")
    seen = []
    command(lambda window: seen.append(window), click.Option(["--window"], type=int, default=6))
    run("show")
    run("show", "--window", "9")
    assert seen == [4, 9]
