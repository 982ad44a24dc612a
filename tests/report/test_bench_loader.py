"""The loader grid on a terminal, as Markdown and as CSV."""

import csv
from io import StringIO

import pytest

from stepscope.report.render.terminal.bench_loader import csv_loader, markdown_loader, print_loader


def point(batch, workers, rate, pin=False, prefetch=None, status="ok", why=None):
    ok = status == "ok"
    return {
        "key": f"{batch} {workers} {pin} {prefetch}",
        "model": "data.py:dataset",
        "mode": "load",
        "batch": batch,
        "device": "cuda",
        "fixes": [],
        "workers": workers,
        "pin": pin,
        "prefetch": prefetch,
        "status": status,
        "why": why,
        "samples_per_s": rate if ok else None,
        "first_batch_ms": 120.0 if ok else None,
        "peak_memory_bytes": 3 << 30 if ok else None,
        "cores": 3.7 if ok else None,
        "unstable": False,
        "unstable_why": None,
    }


def document(points=None, **more):
    points = points or [
        point(batch, workers, 1000.0 * (workers or 1), pin, prefetch)
        for batch in (32, 64, 128)
        for pin in (False, True)
        for workers in (0, 2, 4, 8, 16, 32)
        for prefetch in ((2, 4) if workers else (None,))
    ]
    good = [one for one in points if one["status"] == "ok"]
    best = max(good, key=lambda one: one["samples_per_s"])
    default = next(one for one in good if not one["workers"])
    line = (
        "DataLoader(dataset, batch_size=128, shuffle=True, num_workers=16, pin_memory=True, "
        "prefetch_factor=4, persistent_workers=True)"
    )
    loader = {
        "dataset": {"kind": "Images", "samples": 50000, "sample_bytes": 602112},
        "device_name": "NVIDIA H200",
        "usable_cores": 16,
        "best": best,
        "simplest": best,
        "default": default,
        "speedup": {"against": "default", "ratio": 31.96},
        "line": line,
        "by_batch": [],
    }
    return {"points": points, "loader": {**loader, **more}, "notes": ["pinning is left out"]}


def screen(whole):
    stream = StringIO()
    print_loader(whole, stream)
    return stream.getvalue()


def test_the_answer_comes_first_and_everything_fits_80_columns():
    whole = document()
    text = screen(whole)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "data.py:dataset" in lines[1]
    answer = next(line for line in lines if "samples/s" in line)
    assert "32,000 samples/s   batch 32, 32 workers, 31.96× the default" in answer
    assert text.index("DataLoader(dataset, batch_size=128,") > text.index(answer)
    assert lines[-1] == "Next:  stepscope run --fix workers=32 train.py"


def test_settings_stand_in_a_table_with_a_column_for_each_number_of_workers():
    rows = screen(document()).splitlines()
    head = next(n for n, line in enumerate(rows) if line.startswith("  batch  pin  prefetch"))
    assert rows[head].split() == ["batch", "pin", "prefetch", "0", "2", "4", "8", "16", "32"]
    assert rows[head + 1].split()[:5] == ["32", "off", "2", "1,000", "2,000"]
    assert rows[head + 2].split()[:4] == ["32", "off", "4", "2,000"]
    assert rows[head + 2].index("2,000") == rows[head + 1].index("2,000")


def test_the_simplest_is_named_beside_the_best():
    fast, near = point(64, 8, 1000.0, prefetch=2), point(64, 2, 970.0, True, prefetch=2)
    text = screen(document([point(64, 0, 100.0), near, fast], best=fast, simplest=near))
    assert "970 samples/s   batch 64, 2 workers, pinned" in text
    assert "1,000 samples/s   batch 64, 8 workers: the best, 3% more" in text
    assert "--fix workers=2 --fix pin" in text


def test_a_default_that_is_best_is_called_that():
    only = point(64, 0, 100.0)
    text = screen(document([only], speedup=None, line="DataLoader(dataset, batch_size=64)"))
    assert "batch 64, 0 workers, the default loader" in text
    assert "Next:" not in text


def test_failures_are_shown_with_their_reasons_and_cannot_colour_the_screen():
    bad = point(64, 4, None, prefetch=2, status="failed", why="KeyError: '\x1b[31mx' (data.py:12)")
    full = point(64, 8, None, prefetch=2, status="out_of_memory", why="no room")
    text = screen(document([point(64, 0, 100.0), bad, full]))
    row = next(line for line in text.splitlines() if line.split()[:2] == ["64", "off"])
    assert row.split()[-3:] == ["100", "failed", "memory"]
    assert "batch 64, 4 workers: KeyError: '·[31mx' (data.py:12)" in text
    assert "\x1b[31mx" not in text


def test_many_failures_are_counted():
    bad = [point(64, n, None, prefetch=2, status="failed", why="x") for n in range(1, 10)]
    assert "… and 4 more" in screen(document([point(64, 0, 1.0), *bad]))


def test_unstable_settings_are_marked():
    shaky = {**point(64, 2, 90.0, prefetch=2), "unstable": True, "unstable_why": "rounds differ"}
    text = screen(document([point(64, 0, 100.0), shaky]))
    assert "note: batch 64, 2 workers: rounds differ" in text


@pytest.mark.parametrize("count", [3, 7, 13])
def test_many_numbers_of_workers_go_on_in_another_table(count):
    points = [point(64, n, 10.0, prefetch=2 if n else None) for n in range(count)]
    text = screen(document(points))
    assert text.count("  batch  pin  prefetch") == -(-count // 6)
    assert max(map(len, text.splitlines())) <= 80


def test_markdown_has_a_row_per_setting_and_the_line_to_use():
    whole = document([point(64, 0, 100.0), point(64, 2, None, prefetch=4, status="failed")])
    text = markdown_loader(whole)
    assert text.count("\n| 64 |") == 2
    assert "| 64 | 2 | off | 4 | failed | – | – | – |" in text
    assert "To use: `DataLoader(" in text
    assert "**data.py:dataset** on NVIDIA H200, 16 usable cores" in text


def test_csv_has_a_row_per_setting():
    rows = list(csv.DictReader(StringIO(csv_loader(document()))))
    assert len(rows) == len(document()["points"])
    assert rows[0]["samples_per_s"] == "1000.0"
    assert rows[0]["prefetch"] == ""
