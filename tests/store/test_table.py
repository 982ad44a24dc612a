"""Tables that can be read at any moment of their lives, and after a sudden end."""

import errno
import os
import shutil

import numpy as np
import pytest

from stepscope.record.errors import BrokenRun
from stepscope.store.table import HEADER_BYTES, Table, read_table, trim_table

COLUMNS = ("end_ns", "kind", "loss")


def fill(table, rows, first=0):
    for row in range(first, rows):
        at = row * table.width
        table.cells[at + 1] = row
        table.cells[at + 2] = row / 2
        table.cells[at] = row + 1


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.npy"


@pytest.fixture
def table(path):
    return Table(path, COLUMNS, chunk_rows=8)


def test_closed_it_is_an_ordinary_npy_file(table, path):
    fill(table, 5)
    table.close(5)
    loaded = np.load(path, allow_pickle=False)
    assert loaded.dtype.names == COLUMNS
    assert loaded["end_ns"].tolist() == [1, 2, 3, 4, 5]
    assert loaded["loss"].tolist() == [0, 0.5, 1, 1.5, 2]


def test_open_it_can_be_read_too(table, path):
    fill(table, 5)
    loaded = np.load(path, allow_pickle=False)
    assert loaded["end_ns"].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    mapped = np.load(path, allow_pickle=False, mmap_mode="r")
    assert mapped["kind"][4] == 4


def test_what_was_stored_is_in_the_file_without_closing(table, path, tmp_path):
    fill(table, 3)
    copy = tmp_path / "copy.npy"
    shutil.copy(path, copy)
    assert read_table(copy)["end_ns"].tolist()[:4] == [1, 2, 3, 0]


def test_grows_by_chunks_and_keeps_what_it_has(table, path):
    fill(table, 8)
    old = table.cells
    table.grow()
    assert table.rows == 16
    assert len(table.cells) == 16 * 3
    fill(table, 12, first=8)
    old[1] = 99.0
    assert read_table(path)["kind"].tolist()[:3] == [99, 1, 2]
    table.close(12)
    assert np.load(path, allow_pickle=False)["end_ns"].tolist() == list(range(1, 13))


def test_many_columns_fit_the_header(tmp_path):
    columns = tuple(f"a_rather_long_name_{number}_ns" for number in range(60))
    Table(tmp_path / "wide.npy", columns, chunk_rows=2).close(1)
    assert np.load(tmp_path / "wide.npy", allow_pickle=False).dtype.names == columns


def test_values_come_back_bit_for_bit(table, path):
    values = [1.7e18 + 256, -0.0, float("inf"), 1e-300, float("nan")]
    for number, value in enumerate(values):
        table.cells[number * 3 + 2] = value
    np.testing.assert_array_equal(read_table(path)["loss"][: len(values)], values)


def test_an_existing_file_is_not_overwritten(table, path):
    with pytest.raises(FileExistsError):
        Table(path, COLUMNS)


def test_a_full_disk_at_growth_leaves_the_rows_as_they_are(table, path, monkeypatch):
    fill(table, 8)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        table.grow()
    assert table.rows == 8
    table.close(8)
    assert read_table(path)["end_ns"].tolist() == list(range(1, 9))


def test_closed_without_a_row_it_is_empty(table, path):
    table.close(0)
    assert read_table(path).size == 0
    assert np.load(path, allow_pickle=False).size == 0


def test_trimming_cuts_to_the_rows_written(table, path):
    fill(table, 5)
    trim_table(path, last="end_ns")
    assert np.load(path, allow_pickle=False)["end_ns"].tolist() == [1, 2, 3, 4, 5]
    assert path.stat().st_size == HEADER_BYTES + 5 * 24


def test_trimming_leaves_out_a_row_that_was_half_written(table, path):
    fill(table, 5)
    table.cells[5 * 3 + 1] = 7
    trim_table(path, last="end_ns")
    assert len(read_table(path)) == 5


def test_trimming_a_closed_table_changes_nothing(table, path):
    fill(table, 5)
    table.close(5)
    before = path.read_bytes()
    trim_table(path, last="end_ns")
    assert path.read_bytes() == before


def test_trimming_what_is_not_there_does_nothing(path):
    trim_table(path, last="end_ns")
    assert not path.exists()


def test_a_missing_file_has_no_rows(path):
    assert read_table(path).size == 0


def test_a_file_cut_inside_a_row_gives_the_whole_ones(table, path):
    fill(table, 8)
    os.truncate(path, HEADER_BYTES + 3 * 24 + 10)
    assert read_table(path)["end_ns"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES - 1, HEADER_BYTES])
def test_a_file_cut_inside_its_header_has_no_rows(table, path, size):
    os.truncate(path, size)
    assert read_table(path).size == 0


def test_space_without_a_header_has_no_rows(path):
    path.write_bytes(bytes(HEADER_BYTES + 240))
    assert read_table(path).size == 0


@pytest.mark.parametrize("junk", [b"not a table at all ", b"\x93NUMPY\x02\x00\xf4\x0f\x00\x00{'x"])
def test_a_file_that_is_no_table_is_empty_or_a_broken_run(path, junk):
    path.write_bytes(junk * 1000)
    try:
        rows = read_table(path).size
    except BrokenRun:
        rows = 0
    assert rows == 0


def descriptors_of(path):
    """Ours, and that of the mapping."""
    links = {int(n): f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")}
    return [n for n, link in links.items() if os.path.realpath(link) == str(path)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc")
def test_descriptors_the_program_closed_are_not_used_for_its_files(table, path, tmp_path):
    fill(table, 5)
    ours = descriptors_of(path)
    for number in ours:
        os.close(number)
    own = [open(tmp_path / f"own{n}", "w") for n in range(2)]  # noqa: SIM115
    assert sorted(file.fileno() for file in own) == sorted(ours)
    table.grow()
    fill(table, 12, first=5)
    table.close(12)
    for file in own:
        file.write("own")
        file.close()
    assert [(tmp_path / f"own{n}").read_text() for n in range(2)] == ["own", "own"]
    assert read_table(path)["end_ns"].tolist() == list(range(1, 13))
