"""Run folders and results with one thing damaged: every reader shows what is left or says in a line
what is wrong, at once and in little memory. Each case is made by a seed.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from fuzz.calls import called, verdict
from fuzz.case import make_case, run_commands
from fuzz.folders import RESULTS, RUNS, unpacked, whole_result
from fuzz.values import NESTED, dumped

from stepscope.diagnose.ranking import ranked
from stepscope.record.errors import UsageError
from stepscope.record.finding import Finding
from stepscope.store.folder import find_run
from stepscope.store.table import HEADER_BYTES

AT_ONCE = 5
"""Cases of one test."""
QUICK, SLOW = 60, 1200
"""Tests of that many cases."""
LONGEST_S = 60


@pytest.mark.parametrize("run", RUNS[::9])
def test_whole_folders_are_shown(run: str, tmp_path: Path) -> None:
    folder = unpacked(run, tmp_path)
    (tmp_path / "out").mkdir()
    for arguments in run_commands(folder, folder, tmp_path):
        assert called(arguments)[0] == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpacked("loader_bound_cuda", tmp_path)


def refusal(folder: Path) -> str:
    """The line with which a folder is refused."""
    code, _, errors = called(["show", str(folder)], LONGEST_S)
    assert (code, len(errors.splitlines())) == (2, 1), errors
    return errors


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
@pytest.mark.parametrize("column", ["end_ns", "kind", "samples"])
def test_an_impossible_number_in_a_table_is_named(folder: Path, column: str, value: float) -> None:
    set_cell(folder / "rows.npy", column, 3, value)
    assert f"rows.npy is damaged: {column} of row 4 is {value:g}" in refusal(folder)


def test_a_phase_is_unknown_or_possible(folder: Path) -> None:
    """Phases are clocked in some steps only."""
    set_cell(folder / "rows.npy", "forward_ns", 3, float("nan"))
    assert called(["show", str(folder)], LONGEST_S)[0] == 0
    set_cell(folder / "rows.npy", "forward_ns", 3, float("inf"))
    assert "rows.npy is damaged: forward_ns of row 4 is inf" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
def test_any_loss_is_shown(folder: Path, value: float) -> None:
    set_cell(folder / "rows.npy", "loss", 3, value)
    assert called(["show", str(folder), "--json"])[0] == 0


def test_times_too_short_to_divide_by_are_refused(folder: Path) -> None:
    for slot in range(len(np.load(folder / "clock-916.npy"))):
        set_cell(folder / "clock-916.npy", "total_ns", slot, 5e-324)
    assert "Number out of range - at `$.pipeline[0]" in refusal(folder)


@pytest.mark.parametrize("name", ["rows.npy", "facts.jsonl", "memory-cpu.json", "clock-916.npy"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "loop", "sparse"])
def test_what_is_no_plain_file_is_named_and_not_read(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 20 << 30)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    assert name in refusal(folder)


@pytest.mark.parametrize("value", ["../../../x", "/tmp/x", "..", ".", "a/b", "\0", "x" * 5000])
def test_an_id_that_is_no_name_is_refused(folder: Path, value: str) -> None:
    set_value(folder / "run.json", ["run", "id"], value)
    assert "run.json is not a stepscope run: Expected a name - at `$.run.id`" in refusal(folder)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (["run", "exit_code"], "x", "Expected `int | null`, got `str` - at `$.exit_code`"),
        (["run", "started_ns"], float("inf"), "Number out of range - at `$.run.started_ns`"),
        (["machine", "gpus"], 7, "its machine: Expected `array`, got `int` - at `$.gpus`"),
        (["machine", "cpu", "usable_cores"], 10**400, "out of range - at `$.machine.cpu.usable"),
        (["environment"], NESTED, "nested too deeply"),
        (["machine"], {"\ud800": 1}, "its machine: Half a character in a text"),
    ],
)
def test_a_wrong_value_in_run_json_is_named(
    folder: Path, where: list[str], value: object, said: str
) -> None:
    set_value(folder / "run.json", where, value)
    told = refusal(folder)
    assert "run.json" in told
    assert said in told


@pytest.mark.parametrize("key", ["id", "program", "argv", "started", "torch", "pid", "started_ns"])
def test_what_run_json_does_not_say_is_not_shown(folder: Path, key: str) -> None:
    set_value(folder / "run.json", ["run", key], None)
    assert called(["show", str(folder), "--all"])[0] == 0


def test_a_wrong_value_in_the_facts_is_named_with_its_line(folder: Path) -> None:
    with open(folder / "facts.jsonl", "a") as facts:
        facts.write('{"fact": "batch", "bytes": 1e999}\n')
    last = len((folder / "facts.jsonl").read_bytes().splitlines())
    assert f"facts.jsonl, line {last}: Number out of range - at `$.bytes`" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "file", "where", "value", "said"),
    [
        ("grid", "bench.json", ["notes"], 7, "Expected `array`, got `int` - at `$.notes`"),
        ("grid", "bench.json", ["machine", "gpus"], 7, "Expected `array`, got `int` - at `$.gpus`"),
        ("loader", "bench.json", ["loader", "best", "pin"], "x", "at `$.loader.best.pin`"),
        ("tune", "tune.json", ["baseline", "step_ms"], "x", "at `$.baseline.step_ms`"),
        ("tune", "tune.json", ["trials"], float("inf"), "Number out of range - at `$.trials`"),
        ("batch", "batch.json", ["samples"], 10**400, "Number out of range - at `$.samples`"),
        ("batch", "batch.json", ["device"], NESTED, "nested too deeply"),
    ],
)
def test_a_wrong_value_in_a_result_is_named_with_its_file(
    tmp_path: Path, kind: str, file: str, where: list[str], value: object, said: str
) -> None:
    folder = whole_result(kind, tmp_path)
    set_value(folder / file, where, value)
    code, _, errors = called(["report", str(folder), "-o", "-"], LONGEST_S)
    assert (code, len(errors.splitlines())) == (2, 1), errors
    assert f"{folder / file}" in errors
    assert said in errors


@pytest.mark.parametrize("kind", RESULTS)
def test_whole_results_are_reported(kind: str, tmp_path: Path) -> None:
    folder = str(whole_result(kind, tmp_path))
    assert called(["report", folder, "-o", "-"], LONGEST_S)[0] == 0
    assert called(["report", folder, folder, "-o", "-"], LONGEST_S)[0] == 0


@pytest.mark.parametrize("own", [0, -1])
def test_a_batch_of_nothing_is_reported(tmp_path: Path, own: int) -> None:
    folder = whole_result("batch", tmp_path)
    set_value(folder / "batch.json", ["own"], own)
    assert called(["report", str(folder), "-o", "-"], LONGEST_S)[0] == 0


def test_a_damaged_journal_costs_the_curves_of_the_proof_alone(tmp_path: Path) -> None:
    folder = whole_result("tune", tmp_path)
    lines = (folder / "journal.jsonl").read_text().splitlines()
    (folder / "journal.jsonl").write_text("\n".join([*lines, '{"trial": "x"}', ""]))
    assert called(["report", str(folder), "-o", "-"], LONGEST_S)[0] == 0


@pytest.mark.parametrize("kept", ["window.json", "loader_bound_cuda.html"])
def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path, kept: str) -> None:
    """Of someone else's folder, to where it leads."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (folder / kept).unlink(missing_ok=True)
    (folder / kept).symlink_to(mine)
    set_value(folder / "run.json", ["run", "id"], "loader_bound_cuda")
    called(["report", str(folder), "--force"])
    assert mine.read_text() == "mine"


def test_a_run_that_vanished_is_not_the_last_one(tmp_path: Path) -> None:
    gone = tmp_path / ".stepscope" / "gone"
    gone.mkdir(parents=True)
    (gone / "run.json").symlink_to("/nowhere")
    with pytest.raises(UsageError, match="no runs"):
        find_run(None, tmp_path)


@pytest.mark.parametrize("share", [-1.0, float("nan")])
def test_findings_of_impossible_shares_are_ranked_too(share: float) -> None:
    one = Finding(id="a.b", title="", why="", advice="", share=share)
    assert len(ranked([one, one])) == 2


@pytest.mark.parametrize("block", range(QUICK))
def test_a_damaged_folder_is_shown_or_refused_in_a_line(block: int, tmp_path: Path) -> None:
    check("run", block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(QUICK, SLOW))
def test_thousands_of_damaged_folders_are(block: int, tmp_path: Path) -> None:
    check("run", block, tmp_path)


@pytest.mark.parametrize("block", range(QUICK))
def test_a_damaged_result_is_reported_or_refused_in_a_line(block: int, tmp_path: Path) -> None:
    check("result", block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(QUICK, SLOW))
def test_thousands_of_damaged_results_are(block: int, tmp_path: Path) -> None:
    check("result", block, tmp_path)


def check(kind: str, block: int, place: Path) -> None:
    """Damage runs or results as the seeds say, and read each by one command."""
    for seed in range(block * AT_ONCE, (block + 1) * AT_ONCE):
        case = make_case(kind, seed, place)
        before = everything(place)
        ended = verdict(case.arguments, LONGEST_S)
        said = f"{kind} {seed}: {case.damage}; {case.arguments}: {ended.problem}"
        assert ended.problem is None, said
        assert everything(place) - before == set(), said


def everything(place: Path) -> set[Path]:
    """All files but those of the damaged folder and of reports."""
    apart = {place / "deep" / "er" / "damaged", place / "deep" / "er" / "result", place / "out"}
    return {path for path in place.rglob("*") if not apart & {*path.parents}}


def set_cell(path: Path, column: str, row: int, value: float) -> None:
    """Put a number into a table."""
    table = np.load(path)
    table[column][row] = value
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + table.tobytes())


def set_value(path: Path, where: list[str], value: object) -> None:
    """Put a value into a JSON document."""
    document = parent = json.loads(path.read_text())
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = value
    path.write_text(dumped(document))
