"""The program to run: checked before it starts, and what in it chooses the device."""

import ast
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path

from stepscope.record.errors import UsageError
from stepscope.record.run import DeviceSwitch


@dataclass(frozen=True, slots=True)
class Program:
    """A script or module and its arguments, as the user gave them."""

    target: str
    arguments: tuple[str, ...]
    module: bool
    installed: str | None = None
    """Where the command lies that `target` names, as `torchrun` does; None: it is no command."""
    foreign: bool = False
    """Whether that command is no Python: it starts the program, as `mpirun` does."""

    @property
    def command(self) -> list[str]:
        """The command line that runs it under this Python."""
        python = [] if self.foreign else [sys.executable, *(["-m"] if self.module else [])]
        return [*python, self.installed or self.target, *self.arguments]

    @property
    def name(self) -> str:
        return f"-m {self.target}" if self.module else self.target


_FOREIGN = ("mpirun", "mpiexec", "srun")


def find_command(program: Program) -> Program:
    """The program, with where it lies if it is an installed command: a console script such as
    `torchrun`, first of this Python's own, or a launcher of processes that is no Python."""
    name = program.target
    if program.module or os.sep in name or Path(name).exists():
        return program
    beside = shutil.which(name, path=sysconfig.get_path("scripts"))
    found = beside or shutil.which(name)
    if found is None:
        return program
    with open(found, "rb") as file:
        script = file.read(2) == b"#!"
    foreign = name in _FOREIGN
    return replace(program, installed=found, foreign=foreign) if script or foreign else program


def ranks_program(program: Program, ranks: int) -> Program:
    """torch's launcher, starting the program as so many ranks on this machine."""
    own = ["-m"] if program.module else []
    options = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks))
    arguments = (*options, *own, program.target, *program.arguments)
    return Program("torch.distributed.run", arguments, module=True)


def check_program(program: Program, cwd: Path) -> None:
    """Raise UsageError if the program cannot be started. Only looks; imports nothing."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"torch is not installed for {sys.executable}: {sys.executable} -m pip install torch"
        )
    if program.module:
        _check_module(program.target, cwd)
    elif not program.foreign:
        _check_script(Path(program.installed or program.target))


def _check_script(path: Path) -> None:
    if path.is_dir():
        path = path / "__main__.py"
        if not path.is_file():
            raise UsageError(f"{path.parent} has no __main__.py; give a script")
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}") from None
    if source.startswith(b"PK\x03\x04"):
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # the program will show them itself
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as problem:
        where = f"{path}:{problem.lineno}" if problem.lineno else str(path)
        raise UsageError(f"not Python: {where}: {problem.msg}") from None
    except ValueError as problem:
        raise UsageError(f"not Python: {path}: {problem}") from None


def _check_module(name: str, cwd: Path) -> None:
    search: Sequence[str] | None = [str(cwd), *sys.path]
    for part in name.split("."):
        spec = PathFinder.find_spec(part, search) if search is not None else None
        if spec is None:
            raise UsageError(f"no module named {name}: run from its folder or install it")
        search = spec.submodule_search_locations
    if search is not None and PathFinder.find_spec("__main__", search) is None:
        raise UsageError(f"{name} is a package without __main__; give one of its modules")


def takes_option(program: Program, option: str, cwd: Path) -> bool:
    """Whether a program may know a long option itself: its first file names it, or has a field or a
    parameter of that name where it declares no options by call. True where it cannot be read."""
    path = cwd / program.target
    if program.module:
        path = cwd / (program.target.replace(".", "/") + ".py")
    try:
        source = (path / "__main__.py" if path.is_dir() else path).read_text("utf-8")
    except (OSError, ValueError):
        return True
    if option in source:
        return True
    word = option.removeprefix("--").replace("-", "_")
    declares = re.search(rf"\b({'|'.join(_DECLARES)})\(", source) is not None
    return not declares and re.search(rf"\b{re.escape(word)}\s*[:=]", source) is not None


_DECLARES = ("add_argument", "option", "Option")  # of argparse; of click and typer
_DEVICE_OPTION = re.compile(r"--?(use[-_])?(cuda|gpus?|device|accel(erator)?)([-_]ids?)?")
_AVOIDS_GPU = re.compile(r"--?(no|disable)[-_]?(cuda|gpus?|accel\w*)|--?(use[-_])?cpu([-_]only)?")


def find_device_switch(name: str, arguments: Sequence[str], cwd: Path) -> DeviceSwitch | None:
    """What in the program's first file chooses its device: an option it takes, else a line that
    names the CPU; None where there is neither, or the file cannot be read."""
    path = cwd / name
    if name.startswith("-m "):
        path = cwd / (name.removeprefix("-m ").replace(".", "/") + ".py")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    lines: list[DeviceSwitch] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
        if called in _DECLARES:
            found = _device_option([one for one in texts if isinstance(one, str)], node, arguments)
            if found is not None:
                option, given = found
                return DeviceSwitch(option=option, given=given, file=str(path), line=node.lineno)
        elif called in ("device", "to") and texts[:1] == ["cpu"]:
            lines.append(DeviceSwitch(file=str(path), line=node.lineno))
    return lines[0] if lines else None


def _device_option(
    names: Sequence[str], declared: ast.Call, arguments: Sequence[str]
) -> tuple[str, bool] | None:
    """How an option is to be given for the GPU, and whether it was given and keeps the program off
    it; None where it is no such option."""
    for name in names:
        if _AVOIDS_GPU.fullmatch(name):
            given = not set(arguments).isdisjoint(names)
            return (name, True) if given else None
        if _DEVICE_OPTION.fullmatch(name):
            known = {one.arg: ast.unparse(one.value) for one in declared.keywords}
            switch = "store_true" in known.get("action", "") or known.get("is_flag") == "True"
            if switch or "/" in name:
                return name.partition("/")[0], False
            if "accel" in name:
                return f"{name} gpu", False
            if "device" in name:
                return f"{name} cuda", False
            return f"{name} {'True' if known.get('default') in ('True', 'False') else 0}", False
    return None


def child_environment(options: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment plus `variables` and the hook that loads the probe."""
    return hooked_environment({**os.environ, **(variables or {})}, options)


def hooked_environment(environ: Mapping[str, str], options: str) -> dict[str, str]:
    """An environment plus the hook that loads the probe in the child, where it removes itself."""
    hooked = dict(environ)
    boot = str(Path(__file__).parent / "boot")
    path = hooked.get("PYTHONPATH")
    if path is not None:
        hooked["STEPSCOPE_PYTHONPATH"] = path
    hooked["PYTHONPATH"] = boot if not path else f"{boot}{os.pathsep}{path}"
    hooked["STEPSCOPE_PROBE"] = options
    return hooked
