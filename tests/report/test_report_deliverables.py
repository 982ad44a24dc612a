"""What courses ask for: the baseline analysis, versions side by side, kernels before and after."""

import pytest
from bench_documents import document, failed, point
from story_reading import run_subject, trace_subject, unpacked, whole
from subjects import subject
from tune_documents import tuned

from stepscope.report.render.files import prepare_report
from stepscope.report.render.plain import plain_report
from stepscope.report.story.blocks import Missing
from stepscope.report.story.narrator import versions_table


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of two runs."""
    base = tmp_path_factory.mktemp("runs")
    return [unpacked(name, base) for name in ("unfused_optimizer_cuda", "launch_bound")]


def test_the_baseline_analysis_answers_the_questions_and_names_the_findings(runs):
    run = run_subject(runs[0])
    text = " ".join(plain_report([run], None).split())
    for one in run.document["baseline"]:
        assert one["question"] in text
        assert " ".join(one["answer"].split()) in text
    assert run.document["findings"][0]["title"] in text
    assert "Versions" not in text


def test_lines_are_not_longer_than_a_page_is_wide(runs):
    text = plain_report([run_subject(runs[0])], None)
    assert max(map(len, text.splitlines())) <= 88


def test_each_rung_of_a_tune_is_a_version():
    rows = versions_table([subject("tune", tuned())]).rows
    assert [row[0] for row in rows] == ["baseline", "+ workers=8", "+ pin"]
    assert rows[2][1:5] == (0.14, 1200.0, pytest.approx(20 / 3), 3.0)


def test_each_measured_point_of_a_bench_is_a_version():
    whole_grid = document(point(), point(fixes=["pin"], mean_ms=10.0), failed("failed", "boom"))
    rows = versions_table([subject("bench", whole_grid)]).rows
    assert [row[4] for row in rows] == [1.0, 2.0]


def test_a_trace_is_a_version_with_its_gpu_use():
    (row,) = versions_table([trace_subject("resnet18_b32_h200")]).rows
    assert 0 < row[1] < 1
    assert row[4] == 1.0


def test_versions_without_steps_have_no_speedup():
    empty = subject("tune", tuned(baseline={}, ladder=[]))
    assert versions_table([empty]).rows[0][1:] == (None, None, None, None, None)


def test_two_runs_are_compared_kernel_by_kernel(runs, tmp_path):
    made = prepare_report([str(runs[0]), str(runs[0])], False, tmp_path)
    text = plain_report(made.subjects, made.compared)
    assert "Kernels before and after, ms per step" in text
    assert "Versions" in text
    assert whole(made.story)
    assert {part.id for part in made.story.sections} >= {
        "versions",
        "against-kernels",
        "2-findings",
    }


def test_two_that_cannot_be_compared_still_make_a_report(runs, tmp_path):
    from tune_documents import tune_folder

    made = prepare_report([str(runs[0]), str(tune_folder(tmp_path / "tune-1"))], False, tmp_path)
    assert made.compared is None or made.compared.verdict
    assert whole(made.story)
    notes = [one for part in made.story.sections for one in part.blocks if isinstance(one, Missing)]
    assert any("No timeline" in one.what for one in notes)


def test_three_make_a_report_without_a_comparison(runs, tmp_path):
    made = prepare_report([str(run) for run in (*runs, runs[0])], False, tmp_path)
    assert made.compared is None
    assert whole(made.story)
    assert len(versions_table(made.subjects).rows) == 3


def test_control_characters_do_not_reach_the_text():
    text = plain_report([subject("bench", document(point(model="a\x1b[31m")))], None)
    assert "\x1b" not in text
