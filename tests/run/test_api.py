"""What `import stepscope` offers, and what importing and asking for help costs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Bench, Once


@pytest.fixture(scope="module")
def said(once: "Once") -> dict[str, Any]:
    """What `observes.py` found in its own process."""

    def make(bench: "Bench") -> Any:
        ended = bench.python(str(bench.programs / "observes.py"))
        return bench.shown(ended, bench.folder / "first")

    run = once("observes", make)
    assert run.ended.exit_code == 0, run.ended.stderr
    assert run.ended.own_lines == []
    assert run.document["steps"]["count"] == 4
    found: dict[str, Any] = json.loads(run.ended.stdout)
    return found


def test_a_part_of_a_process_can_be_observed(said: dict[str, Any]) -> None:
    assert said["first steps"] == 4
    assert said["first losses"] == said["first"]
    assert "in progress" in said["during"]
    assert "4 steps" in said["shown"]


def test_observing_does_not_change_what_is_computed(said: dict[str, Any]) -> None:
    assert said["first"] == said["unobserved"] == said["after"]


def test_every_patch_is_taken_out_again(said: dict[str, Any]) -> None:
    assert {"autograd.backward", "DataLoader.__init__", "torch.save"} <= set(said["patched during"])
    assert said["left by first"] == []
    assert said["left"] == []
    assert said["changed around"] == []


def test_an_exception_inside_passes_through(said: dict[str, Any]) -> None:
    assert said["raised"] == "inside"
    assert said["second steps"] == 6


def test_an_exception_inside_is_recorded(said: dict[str, Any]) -> None:
    assert said["second error"] == {"type": "ValueError", "text": "inside"}


def test_steps_can_be_marked(said: dict[str, Any]) -> None:
    assert said["third steps"] == 5


def test_marking_a_step_unobserved_does_nothing(said: dict[str, Any]) -> None:
    assert said["step"] is None


def test_one_run_at_a_time(said: dict[str, Any]) -> None:
    assert "already observing" in said["nested"]


def test_a_run_is_not_replaced_unasked(said: dict[str, Any]) -> None:
    assert "first" in said["again"]


def test_a_refused_observe_leaves_nothing_behind(said: dict[str, Any], once: "Once") -> None:
    run = once("observes", lambda bench: pytest.fail("made above"))
    names = {path.name for path in Path(run.folder).parent.iterdir()}
    assert {"first", "second", "third"} <= names
    assert "nested" not in names


@pytest.fixture(scope="module")
def faults(once: "Once") -> dict[str, Any]:
    """What `faults.py` met with each part of the probe broken in turn."""

    def make(bench: "Bench") -> Any:
        return bench.shown(bench.python(str(bench.programs / "faults.py")), bench.folder / "run1")

    run = once("faults", make)
    found: dict[str, Any] = json.loads(run.ended.stdout)
    return found | {"exit code": run.ended.exit_code}


def test_a_fault_in_the_probe_leaves_the_exit_code(faults: dict[str, Any]) -> None:
    assert faults["exit code"] == 0


def test_a_fault_in_the_probe_never_reaches_the_program(faults: dict[str, Any]) -> None:
    results = faults["results"]
    losses = results["no fault"]
    assert len(losses) == 44
    assert len(results) > 20
    assert {part: got for part, got in results.items() if got != losses} == {}


def test_a_fault_in_the_probe_leaves_no_import_hook_behind(faults: dict[str, Any]) -> None:
    assert faults["left"] == []


def test_a_fault_before_the_program_starts_leaves_it_as_it_is(bench: "Bench") -> None:
    own = bench.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import stepscope.probe.patches as imports\nimports.ImportWatch.install = None\n"
    )
    env = {"PYTHONPATH": f"{own}:{bench.source}"}
    run = bench.run("without_torch.py", "9", env=env)
    assert (run.ended.exit_code, run.ended.stdout) == (9, "no torch here\n")
    assert len(run.ended.own_lines) == 1
    assert "running without it" in run.ended.own_lines[0]


# What is imported when


def imported(bench: "Bench", statement: str) -> set[str]:
    """Top-level modules loaded after a statement that may end the process."""
    code = (
        "import sys\n"
        f"try:\n    {statement}\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print('', *{name.partition('.')[0] for name in sys.modules}, sep='\\n')\n"
    )
    ended = bench.python("-c", code)
    assert ended.exit_code == 0, ended.stderr
    return set(ended.stdout.splitlines())


def test_importing_stepscope_imports_next_to_nothing(bench: "Bench") -> None:
    found = imported(bench, "import stepscope; stepscope.step()")
    assert "stepscope" in found
    assert not found & {"torch", "numpy", "click", "rich", "psutil", "pynvml"}


HELP = "from stepscope.cli.main import main; main({!r})"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(bench: "Bench", arguments: list[str]) -> None:
    found = imported(bench, HELP.format(arguments))
    assert "click" in found
    assert not found & {"torch", "numpy", "rich", "psutil", "pynvml"}


def test_every_command_has_help(bench: "Bench") -> None:
    from stepscope.cli.main import COMMANDS

    listed = bench.here("--help").stdout
    for command in COMMANDS:
        assert f"  {command} " in listed
        ended = bench.here(command, "--help")
        assert (ended.exit_code, ended.stderr) == (0, "")
        assert ended.stdout.startswith("Usage: stepscope " + command)


def test_showing_a_run_does_not_import_torch(bench: "Bench") -> None:
    bench.stepscope("run", str(bench.programs / "without_torch.py"))
    assert "torch" not in imported(bench, HELP.format(["show"]))


def test_dir_lists_what_the_package_offers_and_nothing_else() -> None:
    import stepscope

    assert dir(stepscope) == sorted(stepscope.__all__)
