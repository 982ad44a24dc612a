"""Facts are lines: whole, in order, typed, and readable whatever happened to the last one."""

import os

import pytest

from stepscope.record.errors import BrokenRun
from stepscope.record.facts import (
    BatchFact,
    ConfigFact,
    EndFact,
    HostWait,
    OptimizerFact,
    ProblemFact,
    ProgramError,
    SiteFact,
    SiteKind,
    WindowFact,
)
from stepscope.record.problems import ProblemKind
from stepscope.store.json_lines import FactLog, read_facts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "facts.jsonl"


def site(number, file="a.py", **more):
    return SiteFact(
        id=number, **{"kind": SiteKind.FORWARD, "line": 1, "function": "f", "file": file, **more}
    )


def test_facts_never_reach_a_file_of_the_program(path, tmp_path):
    """One that has the number of our descriptor, which the program has closed."""
    facts = FactLog(path)
    facts.write(site(0))
    number = facts._file.number()
    os.close(number)
    with open(tmp_path / "own", "w") as own:
        assert own.fileno() == number
        facts.write(site(1))
        facts.close()
        own.write("own")
    assert (tmp_path / "own").read_text() == "own"
    assert [fact.id for fact in read_facts(path).all(SiteFact)] == [0, 1]


def test_facts_come_back_by_kind_in_order(path):
    facts = FactLog(path)
    written = [site(0), BatchFact(bytes=64), site(1, "b.py")]
    for fact in written:
        facts.write(fact)
    found = read_facts(path)
    assert found.all(SiteFact) == [written[0], written[2]]
    assert found.last(SiteFact) == written[2]
    assert found.all(BatchFact) == [written[1]]


def test_enums_and_nested_records_come_back_as_such(path):
    facts = FactLog(path)
    facts.write(site(0, kind=SiteKind.SYNC, wait=HostWait.PAGEABLE_COPY))
    facts.write(EndFact(steps=3, error=ProgramError(type="ValueError", text="bad")))
    found = read_facts(path)
    assert found.all(SiteFact)[0].wait is HostWait.PAGEABLE_COPY
    error = found.last(EndFact).error
    assert (type(error), error.text, error.out_of_memory) == (ProgramError, "bad", False)


def test_a_field_that_was_not_written_stays_absent_in_json(path):
    FactLog(path).write(OptimizerFact(id=0, name="SGD", parameters=1, groups=1, lr=1, fused=None))
    fact = read_facts(path).last(OptimizerFact)
    assert fact.capturable is None
    assert fact.to_json() == {
        "id": 0, "name": "SGD", "parameters": 1, "groups": 1, "lr": 1, "fused": None,
    }  # fmt: skip


def test_each_fact_is_one_line(path):
    facts = FactLog(path)
    problem = ProblemFact(kind=ProblemKind.NO_WINDOW, detail="two\nlines\r\nand \u2028 more")
    facts.write(problem)
    facts.write(EndFact(steps=0))
    assert path.read_bytes().count(b"\n") == 2
    assert read_facts(path).all(ProblemFact) == [problem]


def test_a_kind_never_written_is_an_empty_list(path):
    FactLog(path).write(EndFact(steps=0))
    assert read_facts(path).all(WindowFact) == []
    assert read_facts(path).last(ConfigFact) is None


def test_no_file_means_no_facts(path):
    assert read_facts(path).all(EndFact) == []


def test_several_writers_append_to_one_file(path):
    first, second = FactLog(path), FactLog(path)
    for number in range(10):
        (first, second)[number % 2].write(BatchFact(bytes=number))
    assert [fact.bytes for fact in read_facts(path).all(BatchFact)] == list(range(10))


def test_a_torn_last_line_is_skipped(path):
    FactLog(path).write(site(0))
    with open(path, "ab") as file:
        file.write(b'{"fact": "site", "id": 1, "file": "tra')
    assert read_facts(path).all(SiteFact) == [site(0)]


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[1, 2]", b'"text"', b"3", b'{"id": 1}', b'{"fact": 7}', b"\xff\xfe{",
     b'{"fact": "of a later version"}'],
)  # fmt: skip
def test_a_line_of_no_known_kind_is_skipped(path, line):
    path.write_bytes(line + b'\n{"fact": "end", "steps": 4, "new": 1}\n')
    assert read_facts(path).all(EndFact) == [EndFact(steps=4)]


@pytest.mark.parametrize("line", [b'{"fact": "end"}', b'{"fact": "end", "steps": "many"}'])
def test_a_fact_of_another_shape_is_a_broken_run(path, line):
    path.write_bytes(line + b"\n")
    with pytest.raises(BrokenRun, match=r"facts\.jsonl, line 1"):
        read_facts(path)


def test_values_json_does_not_know_are_written_as_text(path):
    FactLog(path).write("fix", name="pin", value=complex(1, 2))
    assert read_facts(path).fixes == [{"name": "pin", "value": "(1+2j)"}]


def test_text_that_is_not_ascii_survives(path):
    FactLog(path).write(site(0, "/home/жаба/тренировка.py", function="\ud800"))
    fact = read_facts(path).last(SiteFact)
    assert (fact.file, fact.function) == ("/home/жаба/тренировка.py", "\ud800")


def test_facts_of_version_1_are_read(path):
    path.write_text(
        '{"fact": "site", "id": 0, "what": "sync:item", "file": "a", "line": 1, "function": "f"}\n'
        '{"fact": "site", "id": 1, "what": "loader", "file": "a", "line": 1, "function": "f"}\n'
        '{"fact": "problem", "text": "observing stopped: disk"}\n'
    )
    found = read_facts(path)
    assert [(one.kind, one.wait) for one in found.all(SiteFact)] == [
        (SiteKind.SYNC, HostWait.ITEM),
        (SiteKind.LOADER, None),
    ]
    assert [one.text for one in found.all(ProblemFact)] == ["observing stopped: disk"]
