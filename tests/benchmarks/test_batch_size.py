"""The table of benchmarks/batch_size.py."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "benchmarks"))

import batch_size  # noqa: E402


def row(batch, rate, status="ok"):
    return {"batch": batch, "samples_per_s": rate, "memory_share": 0.5, "status": status}


def test_both_curves_stand_side_by_side_with_the_answer():
    document = {
        "found": {
            "own": 64,
            "curve": [row(64, 1000.0), row(128, 1500.0), row(256, None, "out_of_memory")],
            "knee": row(128, 1500.0),
            "largest": None,
            "processes": 5,
            "verdict": "Batch 128.",
        },
        "by_hand": {"64": 1250.0, "128": None, "512": 1600.0},
        "wall_s": 61.2,
    }
    lines = batch_size.table(document).split("\n")
    assert lines[2] == "| 64 | 1,000 | 1,250 | 0.800 | 50% | own |"
    assert lines[3] == "| 128 | 1,500 |  |  | 50% | knee |"
    assert lines[4] == "| 256 | out of memory |  |  | 50% |  |"
    assert lines[5] == "| 512 |  | 1,600 |  |  |  |"
    assert lines[7] == "5 processes, 61 s. Batch 128."
