"""`stepscope analyze` from the command line."""

import gzip
import json
import shutil

import pytest
from plain import TRACES

from stepscope.cli.main import main

RESNET = TRACES / "resnet18_b32_h200.json.gz"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs `stepscope analyze` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["analyze", *map(str, arguments)])
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


def test_a_trace_gets_a_screen(run):
    code, out, err = run(RESNET)
    assert (code, err) == (0, "")
    assert "17.1 ms per step   GPU busy 9%" in out


def test_json_is_one_document_on_stdout(run):
    code, out, _ = run(RESNET, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "stepscope.analyze/2"
    parts = document["breakdown_ns"]
    assert parts["compute"] + parts["exposed_copy"] + parts["idle"] == parts["wall"] > 0
    assert document["steps"]["count"] == 8


def test_a_report_of_nsight_systems_reads(run, tmp_path):
    report = tmp_path / "report.sqlite"
    report.write_bytes(gzip.decompress((TRACES / "h100_2gpu_1s.sqlite.gz").read_bytes()))
    code, out, _ = run(report, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["source"]["tool"] == "nsys"
    assert document["launch"]["kernels"] == 3442


def test_a_folder_of_ranks_gets_a_table(run, tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        shutil.copy(TRACES / "a100_nccl_rank0.json.gz", folder / f"rank{rank}.json.gz")
    code, out, _ = run(folder)
    assert code == 0
    assert "2 ranks of 2" in out
    document = json.loads(run(folder, "--json")[1])
    assert len(document["ranks"]) == len(document["comparison"]["rows"]) == 2


def test_a_trace_cut_short_gives_what_it_has_and_says_so(run, tmp_path):
    cut = tmp_path / "cut.json.gz"
    whole = RESNET.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    code, out, _ = run(cut)
    assert code == 0
    assert "note:" in out
    assert json.loads(run(cut, "--json")[1])["quality"]["truncated"] is True


def test_counters_stand_beside_the_model(run, tmp_path):
    counters = tmp_path / "counters.csv"
    raw = (TRACES / "h200_conv_gemm_softmax_raw.csv.gz").read_bytes()
    counters.write_bytes(gzip.decompress(raw))
    code, out, err = run(TRACES / "resnet50_b64_h200.json.gz", "--ncu", counters, "--json")
    assert code == 0
    assert "counters for" in err
    json.loads(out)


def test_events_can_be_exported_and_are_not_overwritten(run, tmp_path):
    target = tmp_path / "events.parquet"
    assert run(RESNET, "--export", target)[0] == 0
    written = target.read_bytes()
    code, out, err = run(RESNET, "--export", target)
    assert (code, out) == (2, "")
    assert "--force replaces it" in err
    assert target.read_bytes() == written
    assert run(RESNET, "--export", target, "--force")[0] == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"<html>404</html>", "not a trace"),
        (b"\x00\x01\x02 random", "not a trace"),
        (b'{"a": 1}', "stepscope:"),
    ],
)
def test_what_is_no_trace_gets_one_line_and_a_non_zero_exit_code(run, tmp_path, content, words):
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    code, out, err = run(path)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_counters_and_several_ranks_are_refused(run):
    code, _, err = run(RESNET, TRACES / "a100_nccl_rank0.json.gz", "--ncu", "counters.csv")
    assert code == 2
    assert "--ncu takes one trace" in err
