"""The table of benchmarks/trial_start.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import trial_start


def test_the_table_has_both_ways_and_says_whether_losses_are_the_same():
    made = [
        {"way": way, "besides_s": besides, "step_ms": 10.0, "losses": [1.0, 0.5]}
        for way, besides in (("by itself", 3.0), ("forked", 0.4), ("by itself", 3.2))
    ]
    shown = trial_start.table({"program": "train.py", "trials": made})
    assert "| by itself | 3.10 (3.00 to 3.20) s | 10.00 (10.00 to 10.00) ms |" in shown
    assert "Losses of all 3 are the same." in shown
    made[0]["losses"] = [1.0, 0.6]
    assert "are of 2 kinds" in trial_start.table({"program": "train.py", "trials": made})
