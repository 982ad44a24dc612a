"""Comparisons as text, Markdown and HTML, also when names are hostile."""

import io

import pytest

from stepscope.cli.compare import check_files, write_files
from stepscope.record.errors import UsageError
from stepscope.report.render.markdown_tables import comparison_markdown
from stepscope.report.render.terminal.tune import print_comparison
from stepscope.report.story import compare as words
from stepscope.report.story.compare import comparison_story

HOSTILE = "<img src=x onerror=alert(1)>|`x`\x1b[31m"
ITEM = {
    "key": "", "label": "", "verdict": "SLOWER", "change": 0.062, "low": 0.051, "high": 0.074,
    "per": "step", "base_ms": 63.1, "other_ms": 67.0, "base_samples_per_s": 507.0,
    "other_samples_per_s": 477.0, "base_processes": 3, "other_processes": 3, "noise_floor": 0.02,
}  # fmt: skip
ROW = {
    "name": "gather", "operator": "aten::index", "phase": "forward", "line": "model.py(88): f",
    "change": "new", "base_count": 0, "other_count": 12, "base_ms": 0.0, "other_ms": 3.7,
    "delta_ms": 3.7,
}  # fmt: skip


def document(**more):
    return {
        "schema": "stepscope.compare/1",
        "base": {"kind": "run", "names": ["main"]},
        "other": {"kind": "run", "names": ["branch"]},
        **{name: ITEM[name] for name in ("verdict", "change", "low", "high", "per", "label")},
        "max_regression": 0.05,
        "strict": False,
        "exit_code": 1,
        "items": [ITEM],
        "left_out": [],
        "phases": [
            {
                "name": "forward", "base_ms": 3.0, "other_ms": 6.9, "delta_ms": 3.9,
                "base_share": 0.5, "other_share": 0.7,
            }
        ],
        "kernels": {
            "unit": "kernels", "base_count": 100, "other_count": 112, "base_ms": 40.0,
            "other_ms": 43.9, "delta_ms": 3.9, "new": 12, "gone": 0, "rows": [ROW],
        },
        "idle": [],
        "amounts": [{"name": "peak memory", "unit": "bytes", "base": 2**30, "other": 1.4 * 2**30}],
        "configuration": [{"what": "loader num_workers", "base": 4, "other": None}],
        "environment": [],
        "environment_same": ["GPU", "driver", "torch"],
        "losses": {"state": "close", "step": None, "largest": 1e-4, "steps": 9, "control": None},
        "why": ["forward +3.9 ms: 12 new kernels from aten::index in forward (model.py:88)"],
        "notes": ["3 and 3 processes, 900 and 900 steps; their noise floor is 2.0%"],
        **more,
    }  # fmt: skip


def screen(shown):
    stream = io.StringIO()
    print_comparison(shown, stream)
    return stream.getvalue()


def test_several_runs_of_a_side_are_named_by_the_first():
    several = {"kind": "run", "names": ["main/1", "main/2", "main/3"]}
    assert comparison_story(document(base=several)).title == "branch against main/1 and 2 more"
    assert "`branch` against `main/1 and 2 more`" in comparison_markdown(document(base=several))


def test_the_screen_says_verdict_reason_and_what_is_the_same():
    lines = screen(document()).splitlines()
    assert lines[0].startswith("SLOWER  +6.2% per step (5.1–7.4%, 95%)")
    assert lines[0].endswith("limit 5% → exit 1")
    assert lines[1] == "  63.1 → 67.0 ms a step, 507 → 477 samples/s"
    assert lines[2].startswith("  forward +3.9 ms: 12 new kernels from aten::index")
    assert lines[3] == "  peak memory +410 MiB · losses match · same GPU, driver, torch"
    assert lines[4] == "  changed: loader num_workers 4 → none"
    assert all(len(line) <= 80 for line in lines)


def test_a_grid_is_a_line_a_point_slowest_first_and_fits_a_screen():
    items = [ITEM | {"label": f"resnet{n} train batch 32 cuda", "change": n / 100}
             for n in range(30)]  # fmt: skip
    lines = screen(document(items=items, left_out=["other"])).splitlines()
    assert "resnet29" in lines[1]
    assert "  … and 18 more in --json" in lines
    assert "  only on one side: other" in lines
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)


def test_control_characters_never_reach_the_terminal():
    text = screen(document(why=[HOSTILE], configuration=[{"what": HOSTILE, "base": 1, "other": 2}]))
    assert "\x1b" not in text


def test_an_unclear_verdict_says_what_would_tell():
    item = ITEM | {"verdict": "UNCLEAR", "low": -0.02, "base_processes": 1, "other_processes": 1}
    shown = document(verdict="UNCLEAR", low=-0.02, items=[item], exit_code=0)
    assert "stepscope run --repeat 3 … for each side" in screen(shown)
    assert words.headline(shown) == "+6.2% per step (−2.0% to +7.4%, 95%)"


@pytest.mark.parametrize(
    ("limit", "strict", "code", "text"),
    [
        (None, False, 0, "no limit → exit 0"),
        (None, True, 3, "strict → exit 3"),
        (0.025, True, 1, "limit 2.5% → exit 1"),
    ],
)
def test_the_gate_says_the_exit_code(limit, strict, code, text):
    assert (
        words.exit_code_reason(document(max_regression=limit, strict=strict, exit_code=code))
        == text
    )


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.051, 0.074, "5.1–7.4%"),
        (-0.4, -0.1, "10.0–40.0%"),
        (-0.02, 0.03, "−2.0% to +3.0%"),
        (1.29, 2.71, "129–271%"),
        (8.56, 99.0, "+856% to over +1,000%"),
        (-0.5, 99.0, "−50.0% to over +1,000%"),
    ],
)
def test_intervals_carry_signs_only_where_they_differ(low, high, text):
    assert words.interval_percent({"low": low, "high": high}) == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, None),
        ({"state": "identical", "step": None, "control": None}, "losses identical"),
        ({"state": "differ", "step": 7, "control": "identical"}, "losses differ from step 7"),
        (
            {"state": "differ", "step": 7, "control": "differ"},
            "losses differ from step 7, as they do between runs of one side",
        ),
    ],
)
def test_losses_in_words(found, text):
    assert words.losses_text(found) == text


@pytest.mark.parametrize(
    ("one", "text"),
    [
        ({"name": "peak memory", "unit": "bytes", "base": 100.0, "other": 100.0},
         "peak memory the same"),
        ({"name": "peak memory", "unit": "bytes", "base": 2**21, "other": 2**20},
         "peak memory −1.0 MiB"),
        ({"name": "GPU busy", "unit": "share", "base": 0.5, "other": 0.8}, "GPU busy 50% → 80%"),
        ({"name": "energy per step", "unit": "J", "base": 2.0, "other": 3.0},
         "energy per step 2 → 3 J"),
        ({"name": "kernels per step", "unit": "", "base": 100.0, "other": 112.0},
         "kernels per step 100 → 112"),
        ({"name": "GPU busy", "unit": "share", "base": 0.5, "other": 0.501}, None),
    ],
)  # fmt: skip
def test_amounts_in_words(one, text):
    assert words.amount_change(one) == text


def test_markdown_holds_the_figures_and_tables_that_add_up():
    page = comparison_markdown(document())
    assert page.startswith("## 🔴 SLOWER +6.2% per step")
    assert "| forward | 3.00 | 6.90 | +3.9 | 50% → 70% |" in page
    assert "| all others |  |  |  |  | +0.20 |" in page
    assert "| **together** |  |  |  | 100 → 112 | +3.9 |" in page
    assert "| loader num_workers | 4 | none |" in page


def test_markdown_of_hostile_names_has_no_tags_and_no_further_columns():
    row = ROW | {"name": HOSTILE, "operator": HOSTILE}
    kernels = document()["kernels"] | {"rows": [row]}
    page = comparison_markdown(document(kernels=kernels, base={"kind": "run", "names": [HOSTILE]}))
    (line,) = [line for line in page.splitlines() if line.startswith("|") and "onerror" in line]
    assert line.replace("\\|", "").count("|") == 7
    assert "\x1b" not in page


def test_markdown_without_kernels_or_phases_is_whole():
    page = comparison_markdown(document(kernels=None, phases=[], configuration=[], losses=None))
    assert "SLOWER" in page
    assert "phase" not in page


def test_the_story_says_what_is_missing_where_there_is_no_window():
    story = comparison_story(document(kernels=None, phases=[], idle=[], amounts=[]))
    told = {section.id: section for section in story.sections}
    assert "step" not in told
    assert "window" in told["kernels"].blocks[0].how
    assert story.verdict == "SLOWER: +6.2% per step (5.1–7.4%, 95%)"


def test_the_page_escapes_what_strangers_named(tmp_path):
    hostile = document(
        why=[HOSTILE], kernels=document()["kernels"] | {"rows": [ROW | {"name": HOSTILE}]}
    )
    write_files(hostile, [tmp_path / "c.html", tmp_path / "c.md"])
    page = (tmp_path / "c.html").read_text()
    assert "<img" not in page
    assert "Kernel by kernel" in page
    assert (tmp_path / "c.md").read_text() == comparison_markdown(hostile)


@pytest.mark.parametrize("name", ["c.pdf", "nowhere/c.md", "."])
def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path, name):
    with pytest.raises(UsageError):
        check_files([tmp_path / name], force=False)


def test_files_are_replaced_only_when_forced(tmp_path):
    path = tmp_path / "c.md"
    path.write_text("mine")
    with pytest.raises(UsageError, match="--force replaces it"):
        check_files([path], force=False)
    check_files([path], force=True)
    assert path.read_text() == "mine"
