"""A benchmark as Markdown and CSV."""

import csv as csv_format
import io

from bench_documents import document, failed, point

from stepscope.report.render.markdown_tables import FIELDS, bench_csv, bench_markdown


def rows(*points):
    return list(csv_format.DictReader(io.StringIO(bench_csv(document(*points)))))


def test_csv_has_a_line_for_each_point_and_every_field():
    found = rows(point(), point(fixes=["amp=bf16", "pin"], mean_ms=10.0, ratio=2.0))
    assert set(FIELDS) <= set(found[0])
    assert found[0]["mean_ms"] == "20.0"
    assert found[1]["fixes"] == "amp=bf16 pin"
    assert found[1]["speedup_ratio"] == "2.0"
    assert found[1]["speedup_verdict"] == "FASTER"


def test_csv_leaves_empty_what_was_not_measured():
    assert rows(point())[0]["mfu"] == ""
    assert rows(point())[0]["speedup_ratio"] == ""


def test_csv_keeps_failures_with_their_reason():
    found = rows(failed("out_of_memory", 'asked, "much"\nmore'))
    assert found[0]["status"] == "out_of_memory"
    assert found[0]["why"] == 'asked, "much"\nmore'
    assert found[0]["mean_ms"] == ""


def test_csv_says_which_fixes_did_not_apply():
    found = rows(point(fixes=["sdpa"], not_applied=[{"name": "sdpa", "why": "no attention"}]))
    assert found[0]["not_applied"] == "sdpa: no attention"


def test_markdown_has_the_machine_the_command_and_a_table_per_group():
    page = bench_markdown(document(point(), point(device="cpu", mean_ms=400.0)))
    assert "NVIDIA H200; AMD EPYC; torch 2.11.0+cu130; driver 580.1" in page
    assert "`stepscope bench resnet18`" in page
    assert "## resnet18 · train · cuda" in page
    assert "## resnet18 · train · cpu" in page


def test_markdown_gives_speedups_with_their_interval_and_verdict():
    page = bench_markdown(document(point(), point(fixes=["amp=bf16"], mean_ms=10.0, ratio=2.0)))
    assert "2.00× (1.96–2.04) FASTER" in page


def test_markdown_tables_are_rectangular():
    page = bench_markdown(
        document(
            point(score=0.5, score_name="dice", energy_j_per_sample=0.1),
            point(fixes=["pin"], ratio=1.0, verdict="SAME"),
            failed("out_of_memory", "a | b", batch=64),
        )
    )
    table = [line for line in page.splitlines() if line.startswith("|")]
    bars = [line.replace("\\|", "").count("|") for line in table]
    assert len(table) == 5
    assert len(set(bars)) == 1


def test_markdown_marks_what_is_unstable_and_what_failed():
    page = bench_markdown(
        document(
            point(unstable=True, unstable_why="drifted"), failed("timed_out", "60 s", batch=64)
        )
    )
    assert "`none` (unstable)" in page
    assert "batch 32, `none` is unstable: drifted" in page
    assert "timed out: 60 s" in page


def test_markdown_has_the_knee_and_the_ablation():
    rates = {16: 1000, 32: 1900, 64: 3600, 128: 3700}
    page = bench_markdown(
        document(*(point(batch=b, mean_ms=b / r * 1e3) for b, r in rates.items()))
    )
    assert "the knee is at 64" in page
    points = [point(), point(fixes=["amp=bf16"], ratio=2.0), point(fixes=["pin"], ratio=1.1)]
    page = bench_markdown(document(*points, request={"ablate": ["amp=bf16", "pin"]}))
    assert "| `amp=bf16` | 2.00× | 2.00× | 1.10× |" in page


def test_markdown_lets_no_strangers_text_become_a_tag_or_a_column():
    page = bench_markdown(
        document(failed("failed", "<script>a|b</script> [x](y) `c`"), notes=["<img src=x>"])
    )
    assert "\\<script\\>a\\|b\\</script\\>" in page
    assert "\\[x\\](y)" in page
    assert "\\<img" in page
