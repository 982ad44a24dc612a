"""A story on a terminal: it fits, it is clean, and the least important goes first."""

import io
import re

import pytest

from stepscope.report.render.terminal.story import folded_command, print_story
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Card,
    Chart,
    Code,
    Column,
    Command,
    Facts,
    Missing,
    Paragraph,
    Role,
    Section,
    Series,
    Story,
    Table,
    Tone,
    Weight,
)

HOSTILE = "evil\x1b[31m\x07name‮ with a very long tail " + "x" * 120


def _story(*blocks: Block, weight: Weight = Weight.LEAD, **kwargs: object) -> Story:
    section = Section("one", "One", tuple(blocks), weight)
    return Story("train.py", "", "train.py · 4 steps · CPU", (section,), "run", **kwargs)  # type: ignore[arg-type]


def _printed(story: Story, detail: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="")
    print_story(story, stream, detail)
    stream.flush()
    return raw.getvalue().decode(encoding)


def _card(number: int, title: str = "GPU waits for the data loader") -> Card:
    return Card(
        id=f"data.{number}", title=title, kind="exact", gain="−46.1 ms",
        why="num_workers=0 " * 20, advice="Raise num_workers. " * 10, effort="one line",
        confidence="high", where="train.py:31",
    )  # fmt: skip


@pytest.mark.parametrize("width", [80, 60, 40])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_line_fits_and_holds_no_control_character(
    width: int, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = (Column("name"), Column("time", "ms", number=True), Column("why", priority=1))
    story = _story(
        Paragraph(HOSTILE, strong=True, tone=Tone.BAD),
        Facts((("name", HOSTILE), (HOSTILE, "value")), ("63.1 ms per step",) * 6),
        Table("t", columns, ((HOSTILE, 1.5, HOSTILE), ("b", 1e9, None)), HOSTILE),
        Chart("c", "bars", "Bars", (Series("", [HOSTILE, "b"], [1.0, 3.0]),), y=Axis("ms")),
        Missing(HOSTILE, HOSTILE),
        _card(1, HOSTILE),
    )
    for detail in (False, True):
        text = _printed(story, detail, encoding)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f‮]", text)
        assert max(map(len, text.splitlines())) <= width
        assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_narrow_screen_drops_the_least_important_columns_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = (
        Column("name"), Column("much matters", number=True), Column("detail", priority=2),
        Column("some use", number=True, priority=1),
    )  # fmt: skip
    story = _story(Table("t", columns, (("a", 1, "d" * 30, 2),)))
    assert "detail" in _printed(story)
    monkeypatch.setenv("COLUMNS", "36")
    text = _printed(story)
    assert "detail" not in text
    assert "much matters" in text
    assert "some use" in text


def test_the_default_screen_is_what_leads_and_detail_is_all_of_it() -> None:
    parts = (
        Section("a", "First", (Paragraph("the answer"),), Weight.LEAD),
        Section("b", "Second", (Paragraph("the rest"),)),
        Section("c", "Third", (Paragraph("the environment"),), Weight.DETAIL),
    )
    story = Story("t", "Verdict.", "s", parts, "run")
    assert "the answer" in _printed(story)
    assert "the rest" not in _printed(story)
    assert "the rest" in _printed(story, detail=True)
    assert "the environment" in _printed(story, detail=True)


def test_five_findings_are_shown_and_the_command_for_the_rest() -> None:
    story = _story(*(_card(number) for number in range(7)), more="stepscope show 7f3a --all")
    text = _printed(story)
    assert " 5  GPU waits" in text
    assert " 6  GPU waits" not in text
    assert "2 more findings: stepscope show 7f3a --all" in text
    assert " 7  GPU waits" in _printed(story, detail=True)


def test_stacked_bars_are_a_line_per_part_with_its_share() -> None:
    series = (
        Series("data wait", ["step"], [75.0], role=Role.DATA),
        Series("forward", ["step"], [25.0], role=Role.FORWARD),
    )
    chart = Chart("phases", "stacked", "Where", series, y=Axis("ms"), across=True)
    lines = _printed(_story(chart)).splitlines()
    assert [line.split()[-1] for line in lines if "▕" in line] == ["75%", "25%"]


def test_a_chart_without_bars_leaves_no_gap() -> None:
    line = Chart("l", "line", "Loss", (Series("", [1, 2], [1.0, 2.0]),))
    assert _printed(_story(line)).count("\n\n") == 0


def test_commands_stand_below_each_other_with_their_purpose() -> None:
    story = _story(
        Code("git status"),
        next=(
            Command("stepscope tune train.py", "measure and prove these"),
            Command("stepscope report 7f3a --open", "full report with timeline"),
            Command("git apply x.patch", label="Apply"),
        ),
    )
    text = _printed(story)
    assert "Next:  stepscope tune train.py         measure and prove these\n" in text
    assert "       stepscope report 7f3a --open    full report with timeline\n" in text
    assert "\nApply:  git apply x.patch\n" in text


def test_a_long_command_is_folded_so_that_a_shell_takes_it() -> None:
    command = "stepscope run --fix workers=12 --fix pin 'my train.py' --name 'a b'"
    lines = list(folded_command(command, 40))
    assert all(len(line) <= 40 for line in lines)
    assert all(line.endswith("\\") for line in lines[:-1])
    assert " ".join(line.rstrip("\\").strip() for line in lines) == command


def test_colours_stay_off_in_a_pipe() -> None:
    assert "\x1b" not in _printed(_story(Paragraph("x", tone=Tone.GOOD)))
