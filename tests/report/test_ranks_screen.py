"""What is said of a run's ranks."""

import shutil

from ranked import never_left, ranked_run, without_end
from snapshots import check_screen

from stepscope.record.facts import ProgramError
from stepscope.record.row_log import RANKS_FOLDER
from stepscope.report.story.blocks import Paragraph, Table
from stepscope.report.story.run.story import run_screen, story_of_run
from stepscope.results.load import load


def late(rank, step):
    return {"backward": 8.0} if rank == 2 and step >= 40 else {}


def section(story, name):
    return next(one for one in story.sections if one.id == name)


def test_the_screen_of_a_run_with_a_late_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_screen("run-ranks", run_screen(load(ranked_run(tmp_path / "run", steps=120, extra=late))))


def test_the_report_tells_more_of_the_ranks(tmp_path):
    story = story_of_run(load(ranked_run(tmp_path / "run", steps=120, extra=late)))
    blocks = section(story, "ranks").blocks
    assert [one.id for one in blocks if isinstance(one, Table)] == ["ranks", "collectives"]
    assert isinstance(blocks[0], Paragraph)
    assert blocks[0].text.startswith("Rank 2 is late since step 4")


def test_lost_ranks_are_said_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = ranked_run(tmp_path / "run", ranks=5)
    without_end(folder, 1, ProgramError(type="ValueError", text="planted"))
    for rank in (2, 3):
        without_end(folder, rank)
        never_left(folder, rank)
    shutil.rmtree(folder / RANKS_FOLDER / "4")
    check_screen("run-ranks-lost", run_screen(load(folder)))


def test_of_many_ranks_the_screen_shows_those_the_others_wait_for(tmp_path):
    def extra(rank, step):
        return {"backward": 8.0} if rank == 17 else {}

    loaded = load(ranked_run(tmp_path / "run", ranks=24, steps=30, extra=extra))
    (table,) = section(run_screen(loaded), "ranks").blocks
    assert isinstance(table, Table)
    assert len(table.rows) == 8
    assert 17 in [row[0] for row in table.rows]
    assert table.title == "Ranks that wait least, of 24"
    (whole, _) = (
        one for one in section(story_of_run(loaded), "ranks").blocks if isinstance(one, Table)
    )
    assert len(whole.rows) == 24
