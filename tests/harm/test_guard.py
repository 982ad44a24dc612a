"""What a trial's program, and all it starts, does to what is not its own: nothing. Or the trial
does not start."""

import ctypes
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import write_operations as operations
from guarded import guarded

from stepscope.cli.main import main
from stepscope.measure import isolation, scratch_copy
from stepscope.measure.isolation import choose_wall
from stepscope.probe.guard import landlock, walls
from stepscope.probe.guard.walls import enter_wall, find_wall
from stepscope.record.errors import UsageError
from stepscope.record.probe_options import Wall
from stepscope.report.story.machine import UNGUARDED

_HARM = """
import os, sys
sys.path.insert(0, {support!r})
from write_operations import run_operations
run_operations({place}, {program!r})
print("tried")
"""
_MADE_DUMPABLE, _NOBODY = 4, 65534


def available(wall: Wall) -> bool:
    return walls._holds(wall)


def changed(before: operations.Victims, after: operations.Victims) -> set[str]:
    return {name for name in before.keys() | after if before.get(name) != after.get(name)}


def all_of_them(harmed: set[str]) -> bool:
    """Whether each operation did harm, but for what the file system cannot do."""
    cases = {operations.victim_name(*case): case[1] for case in operations.cases()}
    return {cases[name] for name in cases.keys() - harmed} <= operations.UNEVENLY_SUPPORTED


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("program") / "operations"
    if "c" in operations.families():
        operations.compile_operations(target)
    return target


@pytest.fixture
def shared() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="stepscope-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def try_all(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path, str, Wall], set[str]]:
    """Has programs that a guarded one starts try everything on victims in a folder, which the
    program knows by an expression; gives those that are not as they were."""

    def harmed(place: Path, named: str, wall: Wall) -> set[str]:
        project = tmp_path / "me" / "project"
        project.mkdir(parents=True, exist_ok=True)
        operations.make_victims(place)
        support = str(Path(operations.__file__).parent)
        (project / "train.py").write_text(
            _HARM.format(support=support, place=named, program=str(program))
        )
        before = operations.state_of_victims(place)
        ran = guarded(project, tmp_path / "trial", wall=wall)
        assert (ran.code, ran.said) == (0, "tried\n")
        return changed(before, operations.state_of_victims(place))

    monkeypatch.setattr(scratch_copy, "_DATA_FILES", 10)  # so that data are linked whole
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))
    return harmed


def test_more_than_a_hundred_operations_are_tried() -> None:
    assert len(operations.cases()) > 100


@pytest.mark.slow
def test_each_operation_does_harm_where_there_is_no_wall(
    tmp_path: Path, try_all: Callable[[Path, str, Wall], set[str]]
) -> None:
    place = tmp_path / "outside"
    assert all_of_them(try_all(place, repr(str(place)), Wall.NONE))


@pytest.mark.parametrize("wall", [Wall.NAMESPACES, Wall.LANDLOCK])
@pytest.mark.parametrize(
    ("folder", "named"),
    [
        ("me/project/data", "os.path.abspath('data')"),
        ("models", "os.environ['HF_HOME']"),
        pytest.param("outside", None, marks=pytest.mark.slow),
        pytest.param("me/beside", None, marks=pytest.mark.slow),
        pytest.param("home/.cache", None, marks=pytest.mark.slow),
        pytest.param("home/.cache", "os.environ['XDG_CACHE_HOME']", marks=pytest.mark.slow),
        pytest.param("models", None, marks=pytest.mark.slow),
        pytest.param("me/project/data", None, marks=pytest.mark.slow),
    ],
)
def test_nothing_of_the_users_is_changed(
    tmp_path: Path,
    try_all: Callable[[Path, str, Wall], set[str]],
    wall: Wall,
    folder: str,
    named: str | None,
) -> None:
    if not available(wall):
        pytest.skip(f"no {wall} here")
    place = tmp_path / folder
    place.mkdir(parents=True)
    assert try_all(place, named or repr(str(place)), wall) == set()


def test_shared_memory_of_others_is_kept_by_namespaces(
    shared: Path, try_all: Callable[[Path, str, Wall], set[str]]
) -> None:
    if not available(Wall.NAMESPACES):
        pytest.skip("no namespaces here")
    assert try_all(shared, repr(str(shared)), Wall.NAMESPACES) == set()


_TRAINING = """
import multiprocessing, os, shutil, subprocess, tempfile
from multiprocessing import shared_memory
import torch
from torch.utils.data import DataLoader, TensorDataset

class Data(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)

data = Data(torch.randn(64, 8), torch.randn(64, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
compiled = torch.compile(model) if shutil.which("g++") else model
for x, y in DataLoader(data, batch_size=8, num_workers=2):
    (compiled(x) - y).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
shutil.copy("model.pt", "best.pt")
block = shared_memory.SharedMemory(create=True, size=1 << 20)
block.buf[0] = 1
block.close()
block.unlink()
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, 2]))
with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["sh", "-c", f"echo x > {folder}/x; echo y > /dev/null; echo z > z"], check=True)
print(sorted(os.listdir()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("wall", [Wall.NAMESPACES, Wall.LANDLOCK])
def test_training_runs_behind_a_wall_as_without(tmp_path: Path, wall: Wall) -> None:
    if not available(wall):
        pytest.skip(f"no {wall} here")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(_TRAINING)
    with tempfile.TemporaryDirectory() as place:  # a short path, for sockets in it
        ran = guarded(tmp_path / "project", Path(place), wall=wall)
    assert (ran.code, ran.outside) == (0, [])
    assert ran.said.endswith("[1, 2]\n['best.pt', 'model.pt', 'train.py', 'z']\n")


@pytest.mark.launches
@pytest.mark.skipif(os.geteuid() != 0, reason="already without privileges")
@pytest.mark.parametrize("wall", list(Wall))
def test_the_walls_hold_without_privileges_and_nothing_else_does(wall: Wall, program: Path) -> None:
    if not available(wall):
        pytest.skip(f"no {wall} here")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        os.chmod(program.parent, 0o755)
        tool = shutil.copy(program, top / "operations") if program.exists() else "none"
        operations.make_victims(top / "victims")
        (top / "mine").mkdir()
        for here, folders, files in os.walk(top):
            for path in (here, *(os.path.join(here, one) for one in (*folders, *files))):
                os.lchown(path, _NOBODY, _NOBODY)
        before = operations.state_of_victims(top / "victims")
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
                ctypes.CDLL(None).prctl(_MADE_DUMPABLE, 1, 0, 0, 0)  # as one that never was root
                os.chdir(top / "mine")
                enter_wall(wall, [str(top / "mine")])
                operations.run_operations(str(top / "victims"), str(tool), fork=True)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        after = operations.state_of_victims(top / "victims")
        harmed = changed(before, after)
        assert not harmed if wall is not Wall.NONE else all_of_them(harmed)


def test_a_wall_that_does_not_hold_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folders: object) -> None:
        raise OSError("not permitted")

    for missing, left in (
        ([Wall.NAMESPACES], Wall.LANDLOCK),
        ([Wall.LANDLOCK, Wall.NAMESPACES], Wall.NONE),
    ):
        for wall in missing:
            monkeypatch.setitem(walls._WALLS, wall, refuse)
        if left is Wall.NONE or available(left):
            assert find_wall.__wrapped__() is left


def test_without_a_wall_nothing_starts_unless_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "find_wall", lambda: Wall.NONE)
    with pytest.raises(
        UsageError, match="nothing here can protect your files from trials: --unguarded"
    ):
        choose_wall(allow_writes=False, unguarded=False)
    assert choose_wall(allow_writes=False, unguarded=True) is Wall.NONE
    assert choose_wall(allow_writes=True, unguarded=False) is Wall.NONE


@pytest.mark.parametrize("command", ["tune", "batch"])
def test_a_command_stops_before_it_writes_anything(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(isolation, "find_wall", lambda: Wall.NONE)
    Path("train.py").touch()
    with pytest.raises(SystemExit) as ended:
        main([command, "train.py"])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert "--unguarded" in told
    assert os.listdir() == ["train.py"]


def test_an_unguarded_tune_says_first_what_is_not_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(isolation, "find_wall", lambda: Wall.NONE)
    Path("train.py").touch()
    with pytest.raises(SystemExit):
        main(["tune", "--unguarded", "--resume", "nothing", "train.py"])
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"stepscope: {UNGUARDED}"
    assert "holds no tune to resume" in second


def test_landlock_does_not_start_beside_files_in_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(isolation, "find_wall", lambda: Wall.LANDLOCK)
    monkeypatch.setattr(landlock, "SHARED_MEMORY", str(tmp_path))
    (tmp_path / "sem.loky-1").touch()
    (tmp_path / "torch_12_34").touch()
    assert choose_wall(allow_writes=False, unguarded=False) is Wall.LANDLOCK
    (tmp_path / "dataset").mkdir()
    with pytest.raises(UsageError, match=f"can protect {tmp_path}/dataset from trials: move it"):
        choose_wall(allow_writes=False, unguarded=False)
    assert choose_wall(allow_writes=False, unguarded=True) is Wall.LANDLOCK
