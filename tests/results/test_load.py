"""`results.load`: every kind of result by one door, each file read once."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from story_reading import TRACES, unpacked

from stepscope.analyze.run import records
from stepscope.analyze.run.document import to_json
from stepscope.analyze.run.records import WINDOW_CACHE, WINDOW_TRACE
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.analyze.timeline.steps import StepMark
from stepscope.record.errors import UsageError
from stepscope.report.render.files import prepare_report
from stepscope.report.render.formats import renderer_for
from stepscope.results import load as loading
from stepscope.results.load import REPORTED, Bench, Ranks, Run, Trace, Tune, decode, load
from stepscope.tune.document import Tune as TuneDocument


@pytest.fixture
def run(tmp_path):
    folder = unpacked("unfused_optimizer_cuda", tmp_path)
    (folder / WINDOW_CACHE).unlink(missing_ok=True)
    return folder


@pytest.fixture
def calls(monkeypatch):
    """How often the readers of a run folder were called, by name and file."""
    found = Counter()

    def counted(name):
        read = getattr(records, name)

        def call(first, *rest, **more):
            found[name, getattr(first, "name", "")] += 1
            return read(first, *rest, **more)

        monkeypatch.setattr(records, name, call)

    for name in ("read_run", "read_facts", "read_table", "assemble_steps", "read_kineto"):
        counted(name)
    return found


@pytest.mark.parametrize("ending", [".html", ".md", ".csv"])
def test_a_report_of_a_run_reads_each_file_once(run, calls, ending):
    job = prepare_report([str(run)], False, run.parent)
    renderer_for(Path(f"report{ending}")).text(job, None)
    assert calls["assemble_steps", ""] == 1
    assert calls["read_kineto", WINDOW_TRACE] == 1
    assert max(calls.values()) == 1, calls


def test_what_is_asked_for_twice_is_the_same_object(run):
    found = load(run)
    assert isinstance(found, Run)
    assert found.timeline is found.timeline
    assert found.tables is found.tables
    assert found.document is found.document


def test_the_windows_analysis_is_kept_for_the_next_reader(run, calls):
    first = load(run).document["timeline"]
    (run / WINDOW_TRACE).unlink()
    kept = json.loads((run / WINDOW_CACHE).read_text())
    assert kept["timeline"] == json.loads(json.dumps(first))
    assert json.loads(json.dumps(load(run).document["timeline"])) == kept["timeline"]


def test_the_analysis_is_the_same_object_model_fresh_and_from_the_cache(run):
    fresh = load(run).analysis
    assert fresh == load(run).analysis
    assert fresh.steps.how is StepMark.PROFILER


def test_a_document_of_another_version_says_so():
    with pytest.raises(UsageError, match="another version of stepscope: Object missing"):
        decode({"schema": "stepscope.analyze/0"}, TraceAnalysis)
    with pytest.raises(UsageError, match=r"is stepscope\.tune/1, but this version reads"):
        decode({"schema": "stepscope.tune/1"}, TuneDocument)


def test_a_result_of_another_kind_is_told_what_to_name(tmp_path):
    (tmp_path / "tune.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is a tune result: name a run$"):
        load(tmp_path, kinds=["run"])
    with pytest.raises(UsageError, match=r"is a tune result: name a run, trace or bench$"):
        load(tmp_path, kinds=["run", "trace", "bench"])


@pytest.mark.parametrize("name", ["resnet18_b32_h200", "cpu_only_rank34.pt.trace"])
def test_the_json_of_a_trace_is_its_analysis(name):
    trace = load(TRACES / f"{name}.json.gz")
    kept = json.loads(json.dumps(to_json(trace.analysis)))
    assert decode(kept, TraceAnalysis) == trace.analysis


def test_a_folder_that_cannot_be_written_is_read_all_the_same(run):
    (run / WINDOW_CACHE).mkdir()
    assert load(run).document["timeline"] is not None


@pytest.mark.parametrize("suffix", loading.TRACE_ENDINGS)
def test_report_takes_every_trace_that_analyze_takes(tmp_path, suffix):
    file = tmp_path / f"a{suffix}"
    file.write_bytes(b"")
    assert isinstance(loading._find(file, tmp_path), Trace)


def test_a_folder_of_traces_is_ranks_and_no_report_is_made_of_it(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.gz").write_bytes(
            (TRACES / "cpu_only_rank34.pt.trace.json.gz").read_bytes()
        )
    found = load(tmp_path)
    assert isinstance(found, Ranks)
    assert len(found.document["ranks"]) == 2
    with pytest.raises(UsageError, match="name one"):
        load(tmp_path, kinds=REPORTED)


@pytest.mark.parametrize(("kind", "of"), [("tune", Tune), ("bench", Bench)])
def test_a_document_is_told_by_its_schema(tmp_path, kind, of):
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"schema": f"stepscope.{kind}/1", "x": 1}))
    assert isinstance(load(file), of)
    assert load(file).document["x"] == 1


def test_a_batch_and_a_comparison_load_but_are_no_runs(tmp_path):
    (tmp_path / "batch.json").write_text('{"schema": "stepscope.batch/1"}')
    assert load(tmp_path).kind == "batch"
    (tmp_path / "c.json").write_text('{"schema": "stepscope.compare/1"}')
    assert load(tmp_path / "c.json").kind == "comparison"
    with pytest.raises(UsageError, match="is a batch result"):
        load(tmp_path, kinds=["run"])


def test_anything_else_says_what_it_may_be(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("x")
    with pytest.raises(UsageError, match="is not a run folder, a trace"):
        load(file)


def test_a_broken_trace_is_refused_at_the_door(tmp_path):
    file = tmp_path / "a.json.gz"
    file.write_bytes(gzip.compress(b"{"))
    with pytest.raises(Exception, match=r"a\.json\.gz"):
        load(file)
