"""Facts are lines: whole, in order, and readable whatever happened to the last one."""

from pathlib import Path

import pytest

from stepscope.store.json_lines import FactLog, read_facts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "facts.jsonl"


def test_facts_come_back_by_kind_in_order(path):
    facts = FactLog(path)
    facts.write("site", id=0, file="a.py")
    facts.write("loader", workers=2)
    facts.write("site", id=1, file="b.py")
    found = read_facts(path)
    assert found["site"] == [{"id": 0, "file": "a.py"}, {"id": 1, "file": "b.py"}]
    assert found["loader"] == [{"workers": 2}]


def test_each_fact_is_one_line(path):
    facts = FactLog(path)
    facts.write("problem", text="two\nlines\r\nand \u2028 more")
    facts.write("end")
    assert path.read_bytes().count(b"\n") == 2
    assert read_facts(path)["problem"] == [{"text": "two\nlines\r\nand \u2028 more"}]


def test_a_kind_never_written_is_an_empty_list(path):
    FactLog(path).write("end")
    assert read_facts(path)["oom"] == []


def test_no_file_means_no_facts(path):
    assert read_facts(path)["process"] == []


def test_several_writers_append_to_one_file(path):
    first, second = FactLog(path), FactLog(path)
    for number in range(10):
        (first, second)[number % 2].write("fact", number=number)
    assert [fact["number"] for fact in read_facts(path)["fact"]] == list(range(10))


def test_a_torn_last_line_is_passed_over(path):
    facts = FactLog(path)
    facts.write("site", id=0)
    with open(path, "ab") as file:
        file.write(b'{"fact": "site", "id": 1, "file": "tra')
    assert read_facts(path)["site"] == [{"id": 0}]


@pytest.mark.parametrize(
    "line", [b"", b"null", b"[1, 2]", b'"text"', b"3", b'{"id": 1}', b'{"fact": 7}', b"\xff\xfe{"]
)
def test_a_line_that_is_no_fact_is_passed_over(path, line):
    path.write_bytes(line + b'\n{"fact": "end", "code": 0}\n')
    assert dict(read_facts(path)) == {"end": [{"code": 0}]}


def test_values_json_does_not_know_are_written_as_text(path):
    FactLog(path).write("process", folder=Path("/tmp/x"), kind=complex(1, 2))
    assert read_facts(path)["process"] == [{"folder": "/tmp/x", "kind": "(1+2j)"}]


def test_text_that_is_not_ascii_survives(path):
    FactLog(path).write("site", file="/home/жаба/тренировка.py", odd="\ud800")
    assert read_facts(path)["site"] == [{"file": "/home/жаба/тренировка.py", "odd": "\ud800"}]
