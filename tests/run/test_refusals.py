"""What cannot be done is refused before anything starts: one line that says what to do, exit 2."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Bench, Ended, Once

PROGRAM = "train.py"


@pytest.fixture
def here(bench: "Bench") -> Path:
    """The bench's folder with one good program and several that are none."""
    folder = bench.folder
    (folder / PROGRAM).write_text("print('started')\n")
    (folder / "broken.py").write_text("import torch\nfor x in range(3)\n    print(x)\n")
    (folder / "program.bin").write_bytes(bytes(range(256)) * 8)
    (folder / "latin.py").write_bytes(b"name = '\xe9'\n")
    (folder / "folder").mkdir()
    (folder / "packaged").mkdir()
    (folder / "packaged" / "__init__.py").touch()
    return folder


def refusal(ended: "Ended") -> str:
    """The one line of a refusal."""
    assert ended.exit_code == 2, ended
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("stepscope: ")
    return line


def all_files(folder: Path) -> dict[str, bytes | None]:
    found = sorted(folder.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch.py"], "nosuch.py"),
        (["nosuch/deep.py"], "nosuch/deep.py"),
        (["folder"], "__main__.py"),
        (["broken.py"], "broken.py:2"),
        (["program.bin"], "program.bin"),
        (["latin.py"], "latin.py"),
        (["-m", "nosuchmodule"], "nosuchmodule"),
        (["-m", "packaged"], "__main__"),
        (["-m", "packaged.nosuch"], "packaged.nosuch"),
        ([], "PROGRAM"),
        (["--steps", "0", PROGRAM], "--steps"),
        (["--steps", "few", PROGRAM], "--steps"),
        (["--timeout", "0", PROGRAM], "--timeout"),
        (["--repeat", "0", PROGRAM], "--repeat"),
        (["--nosuchoption", PROGRAM], "--nosuchoption"),
        (["--out", "/dev/null/run", PROGRAM], "--out"),
        (["--out", "program.bin", PROGRAM], "--out"),
        (["--out", "folder/../packaged", PROGRAM], "--out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_request_that_cannot_be_met_is_refused_in_one_line(
    bench: "Bench", here: Path, arguments: list[str], says: str
) -> None:
    before = all_files(here)
    line = refusal(bench.here("run", *arguments))
    assert says in line
    assert all_files(here) == before


def test_an_unknown_command_is_refused_in_one_line(bench: "Bench") -> None:
    assert "tarin" in refusal(bench.here("tarin"))


def test_a_folder_that_cannot_be_written_in_is_refused(bench: "Bench", here: Path) -> None:
    (here / "folder").chmod(0o555)
    if os.access(here / "folder", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert "--out" in refusal(bench.here("run", "--out", "folder/run", PROGRAM))
    assert "--out" in refusal(bench.here("run", "--out", "folder", PROGRAM))
    assert "--out" in refusal(bench.here("run", "../train.py", cwd=here / "folder"))


def test_a_disk_without_room_is_refused_before_the_program_starts(
    bench: "Bench", here: Path
) -> None:
    import resource

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    before = all_files(here)
    refusal(bench.stepscope("run", "--out", "run", PROGRAM, before=no_room))
    assert all_files(here) == before


def test_a_run_is_replaced_only_by_force(bench: "Bench", here: Path) -> None:
    out = ["--out", "kept"]
    assert bench.here("run", *out, PROGRAM).exit_code == 0
    (here / "kept" / "report.html").touch()
    before = all_files(here)
    assert "--force" in refusal(bench.here("run", *out, PROGRAM))
    assert all_files(here) == before
    # A program that cannot start costs nobody their earlier run.
    refusal(bench.here("run", *out, "--force", "nosuch.py"))
    refusal(bench.here("run", *out, "--force", "--nvtx", "--python", PROGRAM))
    assert all_files(here) == before
    assert bench.here("run", *out, "--force", PROGRAM).exit_code == 0
    assert not (here / "kept" / "report.html").exists()
    (here / "kept" / "notes.txt").touch()
    assert "notes.txt" in refusal(bench.here("run", *out, "--force", PROGRAM))
    assert (here / "kept" / "rows.npy").exists()


def test_other_peoples_files_are_never_replaced(bench: "Bench", here: Path) -> None:
    before = all_files(here)
    assert "--out" in refusal(bench.here("run", "--out", "packaged", "--force", PROGRAM))
    assert "--out" in refusal(bench.here("run", "--out", ".", "--force", PROGRAM))
    assert all_files(here) == before


def test_a_folder_in_use_is_refused(bench: "Bench", here: Path) -> None:
    refused: list[Ended] = []

    def meanwhile(pid: int) -> None:
        refused.append(bench.here("run", "--out", "run", PROGRAM))
        refused.append(bench.here("run", "--out", "run", "--force", PROGRAM))
        os.kill(pid, 15)

    waits = str(bench.programs / "without_torch.py")
    ended = bench.stepscope("run", "--out", "run", waits, "wait", when_ready=meanwhile)
    assert ended.exit_code == 143
    for one in refused:
        assert "in use" in refusal(one)
    assert bench.here("show", "run").exit_code == 0


def test_a_python_without_torch_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from stepscope.launch.program import Program, check_program
    from stepscope.record.errors import UsageError

    (tmp_path / PROGRAM).touch()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    with pytest.raises(UsageError) as refused:
        check_program(Program(str(tmp_path / PROGRAM), (), module=False), tmp_path)
    assert "pip install torch" in str(refused.value)
    assert sys.executable in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "table",
    [
        "[tool.stepscope\n",
        "[tool]\nstepscope = 3\n",
        "[tool.stepscope]\nwindow = 4\n",
        "[tool.stepscope.run]\nwindow = 'many'\n",
        "[tool.stepscope.run]\nnosuchoption = 1\n",
        "\x00",
        "name = 'é'\n",
    ],
    ids=["not toml", "not a table", "no command", "wrong type", "unknown", "binary", "latin-1"],
)
def test_a_broken_pyproject_is_refused_in_one_line(bench: "Bench", here: Path, table: str) -> None:
    (here / "pyproject.toml").write_text(table, encoding="latin-1")
    before = all_files(here)
    refusal(bench.here("run", PROGRAM))
    assert all_files(here) == before


def test_options_may_stand_in_pyproject(bench: "Bench", here: Path) -> None:
    (here / "pyproject.toml").write_text("[tool.stepscope.run]\nout = 'mine'\nno-window = true\n")
    assert bench.here("run", PROGRAM).stdout == "started\n"
    assert (here / "mine" / "run.json").is_file()


# show


@pytest.fixture
def kept(once: "Once", bench: "Bench") -> Path:
    """A copy of a good run of three steps, to be damaged."""
    run = once("ending-exits", lambda bench: bench.run("ending.py", "exit", forked=True))
    return Path(shutil.copytree(run.folder, bench.folder / "run"))


def test_show_without_any_run_says_what_to_do(bench: "Bench") -> None:
    assert "stepscope run" in refusal(bench.here("show"))
    assert "nosuchrun" in refusal(bench.here("show", "nosuchrun"))
    assert "nosuchrun" in refusal(bench.here("show", "nosuchrun", "--json"))
    (bench.folder / "empty").mkdir()
    assert "empty" in refusal(bench.here("show", "empty"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b'"run"',
        b'{"schema": "stepscope.run/1"}',
        b'{"schema": "stepscope.run/1", "run": null}',
        b'{"schema": "stepscope.run/1", "run": {}}',
        b'{"schema": "something.else/7", "run": {"exit_code": 0}}',
    ],
)
def test_show_of_a_corrupt_run_json_is_one_line(bench: "Bench", kept: Path, content: bytes) -> None:
    (kept / "run.json").write_bytes(content)
    assert "run.json" in refusal(bench.show(str(kept)))


def shown(bench: "Bench", kept: Path) -> int:
    """The steps `show` and `show --json` agree on."""
    screen, document = bench.show(str(kept)), bench.show(str(kept), "--json")
    assert (screen.exit_code, screen.stderr) == (0, "")
    assert (document.exit_code, document.stderr) == (0, "")
    count = int(json.loads(document.stdout)["steps"]["count"])
    assert f"{count} step" in screen.stdout
    return count


def test_show_counts_the_rows_a_torn_table_has(bench: "Bench", kept: Path) -> None:
    from stepscope.record.row_log import ROW_COLUMNS
    from stepscope.store.table import HEADER_BYTES

    rows = (kept / "rows.npy").read_bytes()
    two = HEADER_BYTES + 2 * 8 * len(ROW_COLUMNS)
    (kept / "rows.npy").write_bytes(rows[: two + 100])
    assert shown(bench, kept) <= 2


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x00" * 9000, b"[1, 2" * 2000])
@pytest.mark.parametrize("table", ["rows.npy", "sites.npy", "samples.npy"])
def test_show_survives_a_damaged_table(
    bench: "Bench", kept: Path, table: str, content: bytes
) -> None:
    (kept / table).write_bytes(content)
    ended = bench.show(str(kept), "--json")
    if ended.exit_code == 0:
        assert json.loads(ended.stdout)["steps"]["count"] == (0 if table == "rows.npy" else 3)
    else:
        assert table in refusal(ended)


def test_show_survives_missing_tables(bench: "Bench", kept: Path) -> None:
    for path in kept.iterdir():
        if path.name != "run.json":
            path.unlink()
    assert shown(bench, kept) == 0


def test_show_passes_over_torn_and_foreign_facts(bench: "Bench", kept: Path) -> None:
    whole = (kept / "facts.jsonl").read_bytes()
    garbage = b'\x00\xff garbage\n[1, 2]\n{"fact": 3}\n{"no": "fact"}\n\n'
    (kept / "facts.jsonl").write_bytes(garbage + whole + b'{"fact": "end", "st')
    assert shown(bench, kept) == 3


@pytest.mark.parametrize(
    "fact",
    ["process", "site", "optimizer", "config", "loader", "end", "window", "memory", "problem"],
)
def test_show_survives_facts_that_lack_what_they_should_hold(
    bench: "Bench", kept: Path, fact: str
) -> None:
    with open(kept / "facts.jsonl", "a") as file:
        file.write(json.dumps({"fact": fact}) + "\n")
    ended = bench.show(str(kept), "--json")
    if ended.exit_code == 0:
        assert json.loads(ended.stdout)["steps"]["count"] == 3
    else:
        assert kept.name in refusal(ended)
