"""The program whose kernels are studied: recorded once, and counted by ncu where that is there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any, Final

from stepscope.bench.fixed import environment_with
from stepscope.bench.kernels_count import Count, count
from stepscope.launch.child import run_child
from stepscope.launch.program import Program
from stepscope.record.errors import StepscopeError, UsageError

STEPS: Final = 3  # recorded
_USAGE: Final = 2
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in one mode on one device; `settings` are further options of the program."""

    model: str
    mode: str
    batch: int
    device: str
    fixes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def command(self, *more: str) -> list[str]:
        """The program's command line."""
        words = ["--model", self.model, "--mode", self.mode, "--batch", str(self.batch)]
        words += ["--device", self.device]
        for name, value in self.settings.items():
            words += [f"--{name}", str(value)]
        return Program("stepscope.workloads.one_step", (*words, *more), module=True).command


def record(subject: Subject, folder: Path, timeout_s: float) -> tuple[Path, list[dict[str, Any]]]:
    """(the recording, what became of the fixes). Raises UsageError, or StepscopeError in a line."""
    from stepscope.analyze.applied import applied_fixes
    from stepscope.store.facts import read_facts

    folder.mkdir(parents=True, exist_ok=True)
    trace, said = folder / "trace.json", folder / "output.txt"
    command = subject.command("--steps", str(STEPS), "--record", str(trace))
    environ = environment_with(subject.fixes, folder)
    with open(said, "wb") as output:
        outcome = run_child(command, environ, timeout_s, lambda _: None, lambda: None, output)
    if outcome.told is not None:
        raise KeyboardInterrupt
    if outcome.timed_out:
        raise StepscopeError(f"{subject.model}: not recorded within {timeout_s:.0f} s: --timeout")
    if outcome.exit_code or not trace.exists():
        kind = UsageError if outcome.exit_code == _USAGE else StepscopeError
        raise kind(last_line(said) or f"the program ended with exit code {outcome.exit_code}")
    fixes = applied_fixes(read_facts(folder / "facts.jsonl")["fix"], subject.fixes)
    return trace, fixes


def counted(
    subject: Subject,
    names: Sequence[str],
    folder: Path,
    timeout_s: float,
    tell: Callable[[str], None],
) -> Count:
    """Counters of the kernels named, if ncu is there and there are any."""
    if not names:
        return Count([], "there are no kernels on a CPU", 0.0)
    if which("ncu") is None:
        return Count([], "ncu is not on the PATH", 0.0)
    tell(f"counting {len(names)} kernels with ncu, at most {timeout_s:.0f} s")
    folder.mkdir(parents=True, exist_ok=True)
    half = any("fp16" in fix for fix in subject.fixes)
    return count(
        subject.command(), environment_with(subject.fixes, folder), names, folder, timeout_s, half
    )


def last_line(path: Path) -> str:
    """The last thing a program said."""
    lines = path.read_bytes()[-8192:].decode(errors="replace").splitlines()
    spoken = [line.strip() for line in lines if line.strip()]
    return spoken[-1][:_LONGEST] if spoken else ""
