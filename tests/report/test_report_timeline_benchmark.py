"""What benchmarks/report.py measures on, and what it says of the measurements."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from packed_timelines import unpacked

from stepscope.record.timeline import HostKind
from stepscope.report.render.html.timeline import encode_timeline

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Imports the benchmark's modules by name; they are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if name.startswith("_report_") or name in ("report", "_about"):
            del sys.modules[name]


def test_the_made_up_window_is_a_sound_recording(load):
    timeline = load("_report_timeline").made_up(20_000)
    host, device = timeline.host, timeline.device
    inner = np.flatnonzero(host.parent >= 0)
    around = host.parent[inner]
    assert (np.diff(host.start) >= 0).all()
    assert (host.start[inner] >= host.start[around]).all()
    assert (host.end[inner] <= host.end[around]).all()
    assert (host.thread[inner] == host.thread[around]).all()
    assert (host.kind[device.launch] == HostKind.RUNTIME).all()
    assert (device.start > host.start[device.launch]).all()
    assert abs(len(host) + len(device) - 20_000) < 100


def test_all_of_it_is_shown_event_by_event(load):
    timeline = load("_report_timeline").made_up(20_000)
    head, columns = unpacked(encode_timeline(timeline))
    assert head["merged"] == head["untold"] == 0
    assert len(columns["gap"]) > len(timeline.host) + len(timeline.device)


def test_the_summary_takes_medians_over_visits_and_all_their_frames(load):
    report = load("report")
    visits = [
        {
            "first_paint_ms": paint,
            "timeline_ms": 2 * paint,
            "interactive_ms": 3 * paint,
            "draws": [1.0] * 98 + [5.0, 9.0],
            "intervals": [16.0] * 100,
        }
        for paint in (100.0, 300.0, 200.0)
    ]
    told = report.summary(visits)
    assert (told["first_paint_ms"], told["timeline_ms"], told["interactive_ms"]) == (200, 400, 600)
    assert told["interactive_ms_each"] == [300.0, 900.0, 600.0]
    assert told["frames"] == 300
    assert told["draw_ms"]["median"] == 1.0
    assert told["draw_ms"]["max"] == 9.0
    case = {"events": 20_000, "file_bytes": 2_300_000, "timeline_bytes": 120_000} | told
    table = report.table({"cases": [case]})
    assert "| 20,000 | 2.30 MB | 0.12 MB | 200 ms | 400 ms | 600 ms | 1.0 ms |" in table
