"""`stepscope compare` from the command line, on recorded runs and traces."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli.compare import _repeated
from stepscope.cli.main import main

TESTS = Path(__file__).parents[1]
RECORDED = TESTS / "causes" / "recorded" / "unfused_optimizer.zip"
TRACE = TESTS / "data" / "traces" / "cuda_event_sync_multi_stream.json.gz"


@pytest.fixture
def compare(capsys, tmp_path, monkeypatch):
    """Runs the command; exit code, stdout and stderr."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def compare(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *map(str, arguments)])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return compare


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Makes run folders from one recording; `slower` stretches their steps."""
    monkeypatch.syspath_prepend(str(TESTS / "causes"))
    from recorded import unpack

    def recorded(name, slower=1.0):
        folder = unpack(RECORDED, tmp_path / name)
        rows = np.load(folder / "rows.npy", mmap_mode="r+")
        start = json.loads((folder / "run.json").read_text())["run"]["started_ns"]
        for column in rows.dtype.names:
            if column == "end_ns":
                rows[column] = np.where(
                    rows[column] > 0, start + (rows[column] - start) * slower, 0
                )
            elif column.endswith("_ns"):
                rows[column] *= slower
        rows.flush()
        return folder

    yield recorded
    sys.modules.pop("recorded", None)


def test_a_run_twice_as_slow_is_a_regression_with_exit_code_1(compare, recorded):
    code, out, _ = compare(recorded("a"), recorded("b", 2.0), "--max-regression", "5%")
    assert code == 1
    assert out.strip().startswith("SLOWER  +100% per step")
    assert "optimizer +1.9" in out or "optimizer +2.0" in out


def test_without_a_limit_the_exit_code_is_0_and_said_to_be(compare, recorded):
    code, out, _ = compare(recorded("a"), recorded("b", 2.0))
    assert code == 0
    assert "no limit → exit 0" in out


def test_the_same_run_is_never_a_regression(compare, recorded):
    a = recorded("a")
    code, out, _ = compare(a, recorded("b"), "--max-regression", "0%")
    assert code == 0
    assert out.strip().startswith("UNCLEAR  +0.0%")
    assert compare(a, "b", "--strict")[0] == 3


def test_several_runs_a_side_stand_before_and_after_to(compare, recorded):
    names = [recorded(name, 1 + n / 1000) for n, name in enumerate("abcdef")]
    code, out, _ = compare(*names[:3], "--to", *names[3:], "--json")
    document = json.loads(out)
    assert code == 0
    assert document["change"] == pytest.approx(0.003, abs=0.001)
    assert [name[-2:] for name in document["base"]["names"]] == ["/a", "/b", "/c"]
    assert document["items"][0]["other_processes"] == 3


def test_a_folder_of_repeated_runs_is_a_side(compare, recorded):
    for side, slower in (("main", 1.0), ("branch", 1.5)):
        for n in range(1, 4):
            recorded(f"{side}/{n}", slower + n / 1000)
    code, out, _ = compare("main", "branch", "--max-regression", "0.05", "--json")
    assert code == 1
    assert json.loads(out)["other"]["names"] == ["branch/1", "branch/2", "branch/3"]


def test_two_runs_are_judged_by_what_they_hold_whatever_is_measured_later(
    compare, recorded, tmp_path
):
    one, two, *_ = (recorded(f"main/{n}", 1 + n / 1000) for n in range(1, 4))
    before = compare(one, two, "--json")[1]
    assert json.loads(before)["items"][0]["noise_floor_from"] == "assumed"
    compare("main", "main")
    assert compare(one, two, "--json")[1] == before
    record = json.loads((two / "run.json").read_text())
    record["noise"] = [{"device": "cpu", "share": 0.012, "processes": 6}]
    (two / "run.json").write_text(json.dumps(record))
    out = compare(one, two)[1]
    assert "noise floor 5.0%, from 6 processes on this machine" in " ".join(out.split())


def test_files_are_written_by_their_ending_and_dash_prints_markdown(compare, recorded, tmp_path):
    a, b = recorded("a"), recorded("b", 2.0)
    code, out, _ = compare(a, b, "-o", "c.html", "--markdown", "c.md")
    assert code == 0
    assert out.strip().startswith("SLOWER")
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    assert compare(a, b, "-o", "-")[1] == (tmp_path / "c.md").read_text()
    code, _, err = compare(a, b, "-o", "c.html")
    assert (code, err.count("\n")) == (2, 1)
    assert "exists: --force" in err


def test_traces_are_compared_with_a_wide_floor(compare):
    code, out, _ = compare(TRACE, TRACE)
    assert code == 0
    assert out.strip().startswith("UNCLEAR")
    assert "15% assumed" in " ".join(out.split())


def test_a_run_is_seen_as_its_window_beside_a_trace(compare, recorded):
    code, out, _ = compare(recorded("a"), TRACE, "--json")
    assert code == 0
    assert json.loads(out)["base"]["kind"] == "trace"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a"], "name two results"),
        (["a", "a", "a"], "name two results"),
        (["a", "nowhere"], "no run nowhere"),
        (["a", "a", "--max-regression", "much"], "5% or 0.05"),
        (["a", "a", "-o", "c.pdf"], "written as .html or .md"),
        (["a", "--to"], "--to"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(compare, recorded, arguments, says):
    recorded("a")
    code, out, err = compare(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "--to", "b", "c", "--json"], ["a", "--to", "b", "--to", "c", "--json"]),
        (["--to", "b", "--strict", "a"], ["--to", "b", "--strict", "a"]),
        (["a", "--to"], ["a", "--to"]),
    ],
)
def test_to_takes_what_follows_up_to_the_next_option(words, parsed):
    assert _repeated(words) == parsed
