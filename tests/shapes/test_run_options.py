"""The options that bound a run or record a window, on the plain loop."""

from pathlib import Path

from harness import Outcome, parse_shown, programs, run_observed, show


@programs("plain_loop")
def test_steps_ends_the_program_cleanly_after_so_many(outcome: Outcome, tmp_path: Path) -> None:
    ended = run_observed(outcome.shape, tmp_path / "run", "--no-window", "--steps", "7")
    document = parse_shown(show(tmp_path / "run"))
    assert ended.exit_code == 0, ended.stderr
    assert document["steps"]["count"] == 7
    assert document["losses"] == [float(text) for text in outcome.plain.said("loss")[:7]]
    assert outcome.plain.stdout.startswith(ended.stdout)


@programs("plain_loop")
def test_a_window_changes_neither_losses_nor_the_count(outcome: Outcome, tmp_path: Path) -> None:
    options = ("--window", "3", "--window-at", "10")
    ended = run_observed(outcome.shape, tmp_path / "run", *options)
    document = parse_shown(show(tmp_path / "run"))
    assert ended.stdout == outcome.plain.stdout, ended.stderr
    assert document["steps"]["count"] == outcome.shape.steps
    assert document["losses"] == [float(text) for text in outcome.plain.said("loss")]
    assert list((tmp_path / "run").rglob("*.pt.trace.json.gz"))
