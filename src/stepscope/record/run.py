"""run.json: what the launcher knows about a run, written before it starts and at its end."""

from typing import Any

from stepscope.record.fields import Record
from stepscope.record.problems import Problem

RUN_SCHEMA = "stepscope.run/2"


class RunHeader(Record):
    """One execution of a program, as run.json and a run's document name it. What is known only at
    the end is absent until then."""

    id: str | None = None
    program: str | None = None
    argv: list[str] | None = None
    started: str | None = None
    stepscope: str | None = None
    torch: str | None = None
    python: str | None = None
    git: str | None = None
    exit_code: int | None
    """None: still running, or its launcher was killed."""
    here: bool | None = None
    """The program was observed from inside, by `stepscope.observe()`."""
    signal: int | None = None
    timed_out: bool | None = None
    pid: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    killed_by_kernel: bool | None = None


class RunInfo(RunHeader):
    """The run in run.json."""

    processes: dict[str, str] | None = None
    """Processes the program started: pid to command line."""
    problems: list[Problem] | None = None

    def add_problem(self, problem: Problem) -> None:
        self.problems = [*(self.problems or ()), problem]


class RunOptions(Record):
    warmup: int | None = None
    window: int | None = None
    fixes: list[str] | None = None
    auto: bool = False
    """Whether others were tried as it ran."""


class ProgramNoise(Record):
    """How far processes of the program were known to differ on this machine at the time of the
    run."""

    device: str
    """cpu or cuda: the program's device is known only at its end."""
    share: float
    """Two processes stay within it 19 times of 20."""
    processes: int
    """How many processes it was measured on."""


class DeviceSwitch(Record):
    """The part of the program's own source that chooses its device."""

    option: str | None = None
    """The option to pass: `--cuda`, `--device cuda`. None: a line of code chooses."""
    given: bool | None = None
    """Whether the option keeps the program off the GPU and was given."""
    file: str
    line: int


class RunRecord(Record):
    """The whole of run.json."""

    schema: str = RUN_SCHEMA
    run: RunInfo
    environment: dict[str, str] | None = None
    machine: dict[str, Any] | None = None
    options: RunOptions | None = None
    noise: list[ProgramNoise] | None = None
    device_switch: DeviceSwitch | None = None
    """Only looked for on machines with a GPU."""

    @property
    def start_ns(self) -> float:
        """When the program started; 0: unknown."""
        return float(self.run.started_ns or 0)

    @property
    def warmup(self) -> int | None:
        """The requested warm-up, in steps."""
        return self.options.warmup if self.options else None

    @property
    def fixes(self) -> list[str]:
        """The requested fixes."""
        return (self.options.fixes if self.options else None) or []

    @property
    def usable_cores(self) -> float:
        """Cores the run could use; 0: unknown."""
        return float(((self.machine or {}).get("cpu") or {}).get("usable_cores") or 0)
