"""Writes outside the scratch copy end a tune in one line."""

from pathlib import Path

import pytest

from stepscope.measure.isolation import check_denied, check_writes
from stepscope.record.errors import UsageError
from stepscope.record.facts import Facts, WroteOutsideFact

CWD = Path("/home/u/work")


def facts(**fact):
    return Facts([WroteOutsideFact.from_json(fact)] if fact else [])


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        (
            {"path": "/data/x", "file": "/home/u/work/lib/save.py", "line": 3, "action": "write"},
            "lib/save.py:3 would write /data/x, outside the working directory: --allow-writes",
        ),
        (
            {"path": "/data/x", "file": "/home/u/far.py", "line": 3, "action": "delete"},
            "/home/u/far.py:3 would delete /data/x, outside the working directory:",
        ),
        (
            {"path": "/data/x", "file": "", "line": 0, "action": "write"},
            "the program would write /data/x, outside",
        ),
        (
            {"path": "example.org", "file": "", "line": 0, "action": "send to"},
            "the program would send to example.org: --allow-writes",
        ),
    ],
)
def test_the_first_write_outside_is_named_with_its_line(fact, says):
    with pytest.raises(UsageError) as caught:
        check_writes(facts(**fact), (), CWD)
    assert str(caught.value).startswith(says)


def test_what_was_changed_unseen_is_named():
    with pytest.raises(UsageError, match="/data/big was changed while a trial ran"):
        check_writes(facts(), ["/data/big", "/data/more"], CWD)


def test_nothing_written_is_nothing_said():
    assert check_writes(facts(), (), CWD) is None


@pytest.mark.parametrize(
    "said",
    [
        "PermissionError: [Errno 13] Permission denied: '{}'",
        "RuntimeError: Permission denied [{}]",
        "OSError: [Errno 30] Read-only file system: '{}'",
        'OSError: could not open: Permission denied: "{}"',
    ],
)
def test_what_the_kernel_kept_native_code_from_is_named(tmp_path, said):
    path = tmp_path / "sub" / "model.bin"
    with pytest.raises(UsageError, match=r"would write .*model\.bin, outside"):
        check_denied(said.format(path), CWD)


def test_what_the_program_may_not_write_anyway_is_its_own_failure(tmp_path):
    assert check_denied(f"Permission denied: '{tmp_path}/x'", tmp_path) is None
    assert check_denied("ValueError: bad", CWD) is None
