"""Copies by direction and memory."""

import pytest
from handmade import Handmade
from recordings import recorded

from stepscope.analyze.timeline.launches import study_copies
from stepscope.analyze.timeline.names import read_copy_name


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", "pinned"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", "pageable"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", "device"),
        ("Memcpy PtoP (Device -> Device)", "PtoP", "device"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", "unknown"),
        ("CopyHostToDevice (Host -> Device)", "HtoD", "unknown"),
        ("Memcpy HtoD (Unknown -> Device)", "HtoD", "unknown"),
        ("Memcpy", "unknown", "unknown"),
        ("", "unknown", "unknown"),
    ],
)
def test_a_name_says_direction_and_memory(name, direction, memory):
    assert read_copy_name(name) == (direction, memory)


def test_copies_are_added_up_by_direction_and_memory():
    made = Handmade()
    pageable = "Memcpy HtoD (Pageable -> Device)"
    made.work(0, 100, name=pageable, bytes=1_000_000)
    made.work(200, 300, name=pageable, bytes=64 * 1024)
    made.work(300, 350, name=pageable)
    made.work(50, 60, name="Memset (Device)", bytes=8)
    made.work(90, 150, stream="8")
    made.work(0, 350, stream="9", name="ncclDevKernel_AllReduce")
    up, sets = study_copies(made.timeline())
    assert (up.direction, up.memory) == ("HtoD", "pageable")
    assert (up.count, up.small, up.bytes, up.total_ns) == (3, 1, 1_065_536, 250)
    assert up.bytes_per_s == pytest.approx(1_065_536 / 200e-9)
    assert up.overlapped == 10 / 250
    assert (sets.direction, sets.memory, sets.count, sets.overlapped) == ("memset", "device", 1, 0)


def test_compute_on_another_device_hides_nothing():
    made = Handmade()
    made.work(0, 100, name="Memcpy DtoH (Device -> Pinned)", device=0)
    made.work(0, 100, device=1)
    (row,) = study_copies(made.timeline())
    assert (row.overlapped, row.bytes, row.bytes_per_s) == (0.0, None, None)


def test_a_copy_of_no_duration_has_no_rate():
    made = Handmade()
    made.work(5, 5, name="Memcpy DtoD (Device -> Device)", bytes=4)
    (row,) = study_copies(made.timeline())
    assert (row.count, row.bytes, row.bytes_per_s, row.overlapped) == (1, 4, None, 0.0)


def test_a_recording_without_copies_has_no_rows():
    assert study_copies(Handmade().timeline()) == []


def test_a_real_recording_says_what_was_pinned():
    rows = {(r.direction, r.memory): r for r in study_copies(recorded("resnet50_b64_h200"))}
    images = rows["HtoD", "pinned"]
    assert (images.count, images.bytes) == (6, 6 * 64 * 3 * 224 * 224 * 4)
    assert 40e9 < images.bytes_per_s < 60e9
    assert rows["HtoD", "pageable"].bytes == 6 * 64 * 8
    assert rows["DtoH", "pinned"].small == 6
