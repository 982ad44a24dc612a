"""What a run says of how its program ended."""

from fixing import fixed

from stepscope.record.facts import EndFact, ProgramError
from stepscope.store.json_lines import read_facts


def told(folder, error):
    with fixed(folder) as run:
        run.observer.end(error)
    return read_facts(folder / "facts.jsonl").last(EndFact).error


def test_an_error_raised_from_another_tells_both_in_its_first_line(tmp_path):
    error = RuntimeError("a worker exited\nmore of it")
    error.__cause__ = OSError("killed by signal: Bus error\nraise the limit")
    first, rest = told(tmp_path, error).text.split("\n")
    assert first == "a worker exited (from OSError: killed by signal: Bus error)"
    assert rest == "more of it"


def test_an_error_without_a_cause_is_told_as_it_is(tmp_path):
    error = RuntimeError("broken\nfor good")
    error.__context__ = OSError("what was handled meanwhile")
    assert told(tmp_path, error) == ProgramError(
        type="RuntimeError", text="broken\nfor good", out_of_memory=False
    )
