"""Diffs: written, applied again, refused where the text is another."""

import subprocess

import pytest

from stepscope.measure.source_diff import apply_diff, make_diff
from stepscope.record.errors import UsageError

BEFORE = "".join(f"line {n}\n" for n in range(30))
PAIRS = {
    "two hunks": (BEFORE, BEFORE.replace("line 3\n", "line three\n").replace("line 20\n", "")),
    "at the top": (BEFORE, f"new\n{BEFORE}"),
    "at the end": (BEFORE, f"{BEFORE}new\n"),
    "no end of line before": ("a\nb", "a\nb\nc\n"),
    "no end of line after": ("a\nb\n", "a\nc"),
    "no end of line at all": ("a\nb", "x\nb"),
    "other ends of lines": ("a\r\nb\x0cc\r\n", "a\r\nb\x0cd\r\n"),
    "lines like heads": ("x\n-- a/other\n@@ -1 @@\n", "y\n-- a/other\n"),
    "one line": ("a\n", "b\n"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_diff_applied_again_gives_the_other_text(tmp_path, case):
    before, after = PAIRS[case]
    path = tmp_path / "some dir" / "file.py"
    path.parent.mkdir()
    path.write_bytes(before.encode())
    text = make_diff("some dir/file.py", before, after)
    try:
        git = subprocess.run(
            ["git", "apply", "--check", "-"], cwd=tmp_path, input=text.encode(), capture_output=True
        )
        assert git.returncode == 0, git.stderr
    except FileNotFoundError:
        pass
    apply_diff(tmp_path, text)
    assert path.read_bytes() == after.encode()


def test_several_files_are_changed_and_keep_their_modes(tmp_path):
    names = ("a.py", "b.py")
    for name in names:
        (tmp_path / name).write_text(BEFORE)
        (tmp_path / name).chmod(0o750)
    after = BEFORE.replace("line 5\n", "-- a/b.py\n")
    apply_diff(tmp_path, "".join(make_diff(name, BEFORE, after) for name in names))
    assert [(tmp_path / name).read_text() for name in names] == [after, after]
    assert (tmp_path / "a.py").stat().st_mode & 0o777 == 0o750


def test_what_a_link_leads_to_stays(tmp_path):
    (tmp_path / "his.py").write_text(BEFORE)
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "a.py").symlink_to(tmp_path / "his.py")
    apply_diff(folder, make_diff("a.py", BEFORE, "new\n"))
    assert (tmp_path / "his.py").read_text() == BEFORE
    assert (folder / "a.py").read_text() == "new\n"


@pytest.mark.parametrize(
    ("name", "found", "why"),
    [
        ("a.py", BEFORE.replace("line 3\n", "line x\n"), "a.py has changed since"),
        ("a.py", "", "a.py has changed since"),
        ("b.py", BEFORE, "b.py cannot be read"),
        ("../a.py", BEFORE, "outside the folder"),
    ],
)
def test_a_diff_for_another_text_is_refused(tmp_path, name, found, why):
    (tmp_path / "a.py").write_text(found)
    text = make_diff(name, BEFORE, BEFORE.replace("line 4\n", "other\n"))
    with pytest.raises(UsageError, match=why):
        apply_diff(tmp_path, text)
    assert (tmp_path / "a.py").read_text() == found
