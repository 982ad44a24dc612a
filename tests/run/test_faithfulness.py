"""Under `stepscope run` a program meets the Python it would meet without it."""

import importlib.util
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Bench, Observed, Once

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
SECRETS = {
    "TORCH_API_KEY": "envsecret-4711",
    "MY_PASSWORD": "envsecret-4712",
    "WANDB_API_KEY": "envsecret-4713",
}
ARGUMENTS = (
    *("--steps", "3", "--out", "x", "--api-key", "argsecret-1", "--password=argsecret-2"),
    *(TOKEN, "https://user:argsecret-3@host/path", "--", "-m", "a b", ""),
)
STDIN = "first line\nsecond línea\n"


@pytest.fixture(scope="module")
def observed(once: "Once") -> "Observed":
    """The run of `faithful.py`, with secrets about."""
    how = {"stdin": STDIN, "env": SECRETS, "cwd": Path(__file__).parent}
    return once("faithful", lambda bench: bench.run("faithful.py", *ARGUMENTS, **how))


@pytest.fixture(scope="module")
def plain(once: "Once") -> "Observed":
    """The same under plain Python."""
    how = {"stdin": STDIN, "env": SECRETS, "cwd": Path(__file__).parent}

    def make(bench: "Bench") -> "Observed":
        ended = bench.python(str(bench.programs / "faithful.py"), *ARGUMENTS, **how)
        return bench.shown(ended, bench.folder)

    return once("faithful-plain", make)


def said(run: "Observed", word: str) -> list[str]:
    return [line for line in run.ended.stdout.splitlines() if line.split(" ")[0] == word]


WORDS = [
    *("globals", "modules", "argv", "main", "path", "environment", "flags", "threads", "signals"),
    *("hooks", "stdin", "source", "cwd", "child", "loss", "saved", "pickle", "state", "warnings"),
    "random",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_program_sees_what_it_sees_under_plain_python(
    observed: "Observed", plain: "Observed", word: str
) -> None:
    assert said(plain, word)
    assert said(observed, word) == said(plain, word)


def test_stdout_and_exit_code_are_the_same(observed: "Observed", plain: "Observed") -> None:
    assert plain.ended.exit_code == 7, plain.ended.stderr
    assert observed.ended.exit_code == 7
    assert observed.ended.stdout == plain.ended.stdout
    assert observed.document["steps"]["count"] == 4


def test_a_model_can_be_pickled_by_value(observed: "Observed", plain: "Observed") -> None:
    if importlib.util.find_spec("cloudpickle") is None:
        pytest.skip("cloudpickle is not installed")
    assert said(observed, "cloudpickle") == said(plain, "cloudpickle") == ["cloudpickle True"]


def test_no_secret_is_written_into_the_run_folder(observed: "Observed") -> None:
    secrets = [*SECRETS.values(), TOKEN, "argsecret-1", "argsecret-2", "argsecret-3"]
    files = [path for path in Path(observed.folder).rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        data = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in data], path
    shown = observed.shown.stdout + observed.as_json.stdout + observed.ended.stderr
    assert not [secret for secret in secrets if secret in shown]


def test_arguments_that_are_no_secrets_are_kept(observed: "Observed") -> None:
    argv = observed.document["run"]["argv"]
    assert argv[:4] == ["--steps", "3", "--out", "x"]
    assert len(argv) == len(ARGUMENTS)


def test_a_module_with_relative_imports_runs_as_with_python_m(bench: "Bench") -> None:
    command = ("-m", "packaged_plain", "-x", "--steps", "3")
    plain = bench.python(*command, cwd=bench.programs)
    run = bench.run(*command, cwd=bench.programs)
    assert plain.exit_code == 11
    assert (run.ended.exit_code, run.ended.stdout) == (11, plain.stdout)
    assert run.document["run"]["program"] == "-m packaged_plain"


def test_a_folder_with_main_runs(bench: "Bench") -> None:
    app = bench.folder / "app"
    app.mkdir()
    (app / "__main__.py").write_text(
        "import sys\nprint(sys.argv, sys.path, __name__, __spec__.name)\n"
    )
    assert bench.run("app").ended.stdout == bench.python("app").stdout != ""


@pytest.fixture
def customized(bench: "Bench") -> tuple["Bench", dict[str, str]]:
    """A bench whose user has a sitecustomize of their own."""
    own = bench.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.customized_by = __file__\n")
    (bench.folder / "say.py").write_text(
        "import os, sys\n"
        "print(sys.customized_by, sys.modules['sitecustomize'].__file__)\n"
        "print(sys.path, sorted(os.environ.items()))\n"
    )
    return bench, {"PYTHONPATH": os.pathsep.join([str(own), str(bench.source)])}


def test_the_users_own_sitecustomize_still_runs(customized: tuple["Bench", dict[str, str]]) -> None:
    bench, env = customized
    plain = bench.python("say.py", env=env)
    assert plain.exit_code == 0, plain.stderr
    assert bench.run("say.py", env=env).ended.stdout == plain.stdout


def test_a_failing_sitecustomize_fails_as_it_always_did(
    customized: tuple["Bench", dict[str, str]],
) -> None:
    bench, env = customized
    (bench.folder / "own" / "sitecustomize.py").write_text("1 / 0\n")
    (bench.folder / "say.py").write_text("import sys\nprint('sitecustomize' in sys.modules)\n")
    plain = bench.python("say.py", env=env)
    run = bench.run("say.py", env=env).ended
    assert (run.exit_code, run.stdout) == (plain.exit_code, plain.stdout)
    assert "ZeroDivisionError" in plain.stderr
    assert "ZeroDivisionError" in run.stderr


@pytest.mark.parametrize("option", ["-E", "-I"])
def test_a_child_that_ignores_the_environment_is_left_alone(bench: "Bench", option: str) -> None:
    (bench.folder / "say.py").write_text(
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '{option}', '-c', 'print(1)'], check=True)\n"
    )
    assert bench.run("say.py").ended.stdout == "1\n"


# --steps, --repeat


@pytest.fixture(scope="module")
def careful(once: "Once") -> "Observed":
    """Two runs of a program with `except Exception` around its steps; the first is shown."""

    def make(bench: "Bench") -> "Observed":
        stops = str(bench.programs / "stops.py")
        options = ("--no-window", "--repeat", "2", "--steps", "5", "--out", "runs")
        ended = bench.here("run", *options, stops, "exception")
        return bench.shown(ended, bench.folder / "runs" / "1")

    return once("careful", make)


def test_steps_passes_through_except_exception(careful: "Observed") -> None:
    assert careful.ended.exit_code == 0
    assert careful.ended.stdout == "finally ran\natexit ran\n" * 2
    assert careful.document["steps"]["count"] == 5
    assert careful.document["problems"] == []


def test_repeat_makes_as_many_runs(careful: "Observed", bench: "Bench") -> None:
    runs = Path(careful.folder).parent
    assert sorted(path.name for path in runs.iterdir()) == ["1", "2"]
    second = bench.here("show", str(runs / "2"))
    assert "5 steps" in second.stdout
    assert "run 1 of 2" in careful.ended.stderr
    assert "run 2 of 2" in careful.ended.stderr


def test_steps_ends_a_program_that_swallows_everything(once: "Once") -> None:
    run = once("stubborn", lambda bench: bench.run("--steps", "5", "stops.py", "bare", forked=True))
    assert run.ended.exit_code == 0
    assert "never stopped" not in run.ended.stdout
    assert run.ended.stdout.splitlines()[-1] == "atexit ran"
    # It is asked a few times before it is made to end.
    assert 5 <= run.document["steps"]["count"] <= 8


def test_repeat_goes_on_after_a_failure_and_says_so(bench: "Bench") -> None:
    program = str(bench.programs / "without_torch.py")
    ended = bench.stepscope("run", "--repeat", "3", "--quiet", program, "9")
    assert ended.exit_code == 9
    assert ended.stdout == "no torch here\n" * 3
    assert ended.stderr == ""
    assert len(list((bench.folder / ".stepscope").glob("*/run.json"))) == 3


# The folder


def test_git_ignores_the_run_folder(bench: "Bench") -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=bench.folder, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    (bench.folder / "train.py").write_text("print('hello')\n")
    assert bench.stepscope("run", "train.py").exit_code == 0
    assert git("status", "--porcelain").split() == ["??", "train.py"]
    assert "hello" not in bench.here("show").stdout
    assert bench.here("show").exit_code == 0


def test_two_runs_never_share_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.store import folder

    ids = iter(["1115-0000-aaa", "1115-0000-aaa", "1115-0000-bbb"])
    monkeypatch.setattr(folder, "new_id", lambda: next(ids))
    first = folder.create_folder(None, force=False, cwd=tmp_path)
    (first / folder.RUN_FILE).write_text("{}")
    assert folder.create_folder(None, force=False, cwd=tmp_path).name == "1115-0000-bbb"


def test_a_quiet_run_leaves_stderr_to_the_program(bench: "Bench") -> None:
    (bench.folder / "train.py").write_text("import sys\nprint('mine', file=sys.stderr)\n")
    ended = bench.stepscope("run", "--quiet", "train.py")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "", "mine\n")


def test_a_closed_stderr_costs_nothing(bench: "Bench") -> None:
    program = str(bench.programs / "without_torch.py")
    stepscope = [sys.executable, "-m", "stepscope.cli.main", "run", program, "9"]
    env = os.environ | {"PYTHONPATH": str(bench.source)}
    ended = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *stepscope],
        cwd=bench.folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (9, "no torch here\n")


# A terminal


def interrupt_at_terminal(bench: "Bench", stdin_is_terminal: bool) -> str:
    """What the program prints when Ctrl-C is typed at a terminal it runs in."""
    program = str(bench.programs / "counts_interrupts.py")
    command = [sys.executable, "-m", "stepscope.cli.main", "run", "--quiet", program]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(bench.folder)
        os.environ["PYTHONPATH"] = str(bench.source)
        if not stdin_is_terminal:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv(command[0], command)
    text, sent = b"", False
    deadline = time.monotonic() + 200
    try:
        while time.monotonic() < deadline:
            text += os.read(terminal, 1000)
            if b"ready" in text and not sent:
                time.sleep(0.3)  # by then the program waits: two signals would be told apart
                os.write(terminal, b"\x03")
                sent = True
    except OSError:  # the terminal's last user has gone
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 12, text
    return text.decode()


@pytest.mark.parametrize("stdin_is_terminal", [True, False])
def test_ctrl_c_at_a_terminal_reaches_the_program_once(
    bench: "Bench", stdin_is_terminal: bool
) -> None:
    assert "interrupts 1\r\n" in interrupt_at_terminal(bench, stdin_is_terminal)


def test_repeat_ends_with_a_program_that_a_signal_ended(bench: "Bench") -> None:
    program = bench.folder / "killed.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    ended = bench.stepscope("run", "--repeat", "3", "--quiet", str(program))
    assert ended.exit_code == 128 + 15
    assert len(list((bench.folder / ".stepscope").glob("*/"))) == 1
