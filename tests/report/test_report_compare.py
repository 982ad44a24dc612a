"""Comparisons as text, Markdown and HTML, also when names are hostile."""

import io

import msgspec
import pytest
from snapshots import check_screen

from stepscope.cli.compare import check_files, write_files
from stepscope.record.errors import UsageError
from stepscope.report.render.markdown import markdown
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story import compare as words
from stepscope.report.story.compare import comparison_screen, comparison_story
from stepscope.results.comparison import AmountChange, Comparison, LossComparison, Quantity, Unit

HOSTILE = "<img src=x onerror=alert(1)>|`x`\x1b[31m"
ITEM = {
    "key": "", "label": "", "verdict": "SLOWER", "change": 0.062, "low": 0.051, "high": 0.074,
    "speedup": 0.94, "per": "step", "same_within": 0.02, "base_ms": 63.1, "other_ms": 67.0,
    "base_samples_per_s": 507.0, "other_samples_per_s": 477.0, "base_samples": 32.0,
    "other_samples": 32.0, "base_processes": 3, "other_processes": 3, "base_steps": 900,
    "other_steps": 900, "noise_floor": 0.02, "noise_floor_from": "own",
    "noise_floor_processes": None, "within_process_variation": 0.0,
}  # fmt: skip
ROW = {
    "name": "gather", "operator": "aten::index", "phase": "forward", "line": "model.py(88): f",
    "change": "new", "base_count": 0, "other_count": 12, "base_ms": 0.0, "other_ms": 3.7,
    "delta_ms": 3.7,
}  # fmt: skip
KERNELS = {
    "unit": "kernels", "base_count": 100, "other_count": 112, "base_ms": 40.0, "other_ms": 43.9,
    "delta_ms": 3.9, "new": 12, "gone": 0, "rows": [ROW],
}  # fmt: skip
WORKERS = {
    "part": "loader", "key": "num_workers", "index": 0, "owner": "", "base": 4, "other": None
}  # fmt: skip
WORK = {
    "phase": "forward", "operator": "aten::index", "unit": "kernels", "delta_ms": 3.7, "new": 12,
    "gone": 0, "count": 12, "place": {"function": "forward", "file": "model.py", "line": 88},
}  # fmt: skip


def comparison(**more):
    return msgspec.convert(
        {
            "base": {"kind": "run", "names": ["main"]},
            "other": {"kind": "run", "names": ["branch"]},
            **{name: ITEM[name] for name in ("verdict", "change", "low", "high", "per", "label")},
            "max_regression": 0.05,
            "strict": False,
            "exit_code": 1,
            "items": [ITEM],
            "left_out": [],
            "scale": 1.0,
            "phases": [
                {
                    "name": "forward", "base_ms": 3.0, "other_ms": 6.9, "delta_ms": 3.9,
                    "base_share": 0.5, "other_share": 0.7,
                }
            ],
            "kernels": KERNELS,
            "idle": [],
            "amounts": [
                {"name": "peak memory", "unit": "bytes", "base": 2.0**30, "other": 1.4 * 2**30}
            ],
            "configuration": [WORKERS],
            "environment": [],
            "environment_same": ["GPU", "driver", "torch"],
            "losses": {"state": "close", "step": None, "largest": 1e-4, "steps": 9},
            "why": [{"phase": "forward", "delta_ms": 3.9, "work": WORK}],
            "notes": [],
            **more,
        },
        Comparison,
    )  # fmt: skip


def screen(shown):
    stream = io.StringIO()
    print_story(comparison_screen(shown), stream)
    return stream.getvalue()


def page(shown):
    return markdown(comparison_story(shown))


def test_the_document_is_read_back_as_it_was_written():
    found = comparison()
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found


def test_several_runs_of_a_side_are_named_by_the_first():
    several = {"kind": "run", "names": ["main/1", "main/2", "main/3"]}
    assert comparison_story(comparison(base=several)).title == "branch against main/1 and 2 more"


def test_the_screen_of_a_regression():
    check_screen("compare-slower", comparison_screen(comparison()))


def test_the_screen_of_an_unclear_comparison():
    item = ITEM | {
        "verdict": "UNCLEAR", "low": -0.02, "base_processes": 1, "other_processes": 1,
        "noise_floor": 0.15, "noise_floor_from": "assumed", "within_process_variation": 0.005,
    }  # fmt: skip
    busy = [{"kind": "host busy", "names": ["main"]}]
    shown = comparison(verdict="UNCLEAR", low=-0.02, items=[item], exit_code=0, notes=busy)
    assert words.headline(shown) == "+6.2% per step (95% CI −2.0% to +7.4%)"
    check_screen("compare-unclear", comparison_screen(shown))


def test_a_grid_is_a_line_a_point_slowest_first_and_fits_a_screen():
    items = [ITEM | {"label": f"resnet{n} train batch 32 cuda", "change": n / 100}
             for n in range(30)]  # fmt: skip
    shown = comparison(items=items, left_out=["other"], why=[])
    text = screen(shown)
    check_screen("compare-grid", comparison_screen(shown))
    lines = text.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)


def test_control_characters_never_reach_the_terminal():
    cause = {"phase": "forward", "delta_ms": 1.0, "work": WORK | {"operator": HOSTILE}}
    text = screen(comparison(why=[cause], configuration=[WORKERS | {"key": HOSTILE}]))
    assert "\x1b" not in text


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
        words.exit_code_reason(comparison(max_regression=limit, strict=strict, exit_code=code))
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
    assert words.interval_percent(comparison(low=low, high=high)) == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, None),
        (("identical", None, None), "losses identical"),
        (("differ", 7, "identical"), "losses differ from step 7"),
        (
            ("differ", 7, "differ"),
            "losses differ from step 7, as they do between runs of one side",
        ),
    ],
)
def test_losses_in_words(found, text):
    if found is not None:
        state, step, control = found
        plain = {"state": state, "step": step, "largest": 0.0, "steps": 9, "control": control}
        found = msgspec.convert(plain, LossComparison)
    assert words.losses_text(found) == text


@pytest.mark.parametrize(
    ("name", "unit", "base", "other", "text"),
    [
        (Quantity.PEAK_MEMORY, Unit.BYTES, 100.0, 100.0, "same peak memory"),
        (Quantity.PEAK_MEMORY, Unit.BYTES, 2.0**21, 2.0**20, "peak memory −1.0 MiB"),
        (Quantity.GPU_BUSY, Unit.SHARE, 0.5, 0.8, "GPU busy 50% → 80%"),
        (Quantity.ENERGY, Unit.JOULES, 2.0, 3.0, "energy per step 2 → 3 J"),
        (Quantity.KERNELS, Unit.COUNT, 100.0, 112.0, "kernels per step 100 → 112"),
        (Quantity.GPU_BUSY, Unit.SHARE, 0.5, 0.501, None),
    ],
)
def test_amounts_in_words(name, unit, base, other, text):
    assert words.amount_change(AmountChange(name, unit, base, other)) == text


def test_markdown_leads_with_the_verdict_and_holds_the_tables():
    text = page(comparison())
    assert "**SLOWER: &#43;6.2%" in text or "**SLOWER: +6.2% per step" in text
    assert "| forward | 3 | 6.9 | 3.9 |" in text.replace(".00", "").replace(".90", ".9")
    assert "| gather |" in text
    assert "num\\_workers | 4 | none |" in text


def test_markdown_of_hostile_names_has_no_tags_and_no_further_columns():
    row = ROW | {"name": HOSTILE, "operator": HOSTILE}
    hostile = KERNELS | {"rows": [row]}
    text = page(comparison(kernels=hostile, base={"kind": "run", "names": [HOSTILE]}))
    (line,) = [line for line in text.splitlines() if line.startswith("|") and "onerror" in line]
    assert line.replace("\\|", "").count("|") == 11
    assert "\x1b" not in text


def test_markdown_without_kernels_or_phases_is_whole():
    text = page(comparison(kernels=None, phases=[], configuration=[], losses=None))
    assert "SLOWER" in text
    assert "| phase" not in text


def test_the_story_says_what_is_missing_where_there_is_no_window():
    story = comparison_story(comparison(kernels=None, phases=[], idle=[], amounts=[]))
    told = {section.id: section for section in story.sections}
    assert "step" not in told
    assert "window" in told["kernels"].blocks[0].how
    assert story.verdict == "SLOWER: +6.2% per step (95% CI 5.1–7.4%)"


def test_the_page_escapes_what_strangers_named(tmp_path):
    cause = {"phase": HOSTILE, "delta_ms": 1.0}
    hostile = comparison(why=[cause], kernels=KERNELS | {"rows": [ROW | {"name": HOSTILE}]})
    write_files(hostile, [tmp_path / "c.html", tmp_path / "c.md"])
    text = (tmp_path / "c.html").read_text()
    assert "<img" not in text
    assert "Kernel by kernel" in text
    assert (tmp_path / "c.md").read_text() == page(hostile)


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
