"""Documents of a tune written by hand, and a folder as a tune leaves it."""

import json

PROOF = {
    "state": "identical", "because": None, "steps": 100, "seeds": 1,
    "numbers": {}, "covered": ["epoch end"], "not_covered": ["scheduler step"], "trials": [],
}  # fmt: skip
MEASURED = {
    "step_ms": 20.0, "low_ms": 19.0, "high_ms": 21.0, "spread": 0.05, "processes": 5,
    "samples_per_s": 400.0, "peak_memory_bytes": 3.0 * 2**30, "gpu_busy": 0.14,
    "energy_j_per_step": None, "energy_j_per_sample": 0.5, "cost_per_million": None,
}  # fmt: skip


def rung(label, speedup, total, predicted=None, **more):
    """A fix that was kept; `predicted` is a speedup."""
    name, _, value = label.partition("=")
    told = None
    if predicted is not None:
        told = {"speedup": predicted, "low": predicted * 0.8, "high": predicted * 1.25}
    return {
        "fix": name,
        "params": {"value": value} if value else {},
        "label": label,
        "kind": "exact",
        "fixes": [label],
        "speedup": speedup,
        "low": speedup * 0.95,
        "high": speedup * 1.05,
        "verdict": "faster",
        "cumulative": {
            "speedup": total, "low": total * 0.95, "high": total * 1.05, "verdict": "faster",
        },
        "predicted_speedup": predicted,
        "predicted": told,
        "proof": PROOF,
        "compile_s": None,
        "pays_after_steps": None,
        **MEASURED,
        "step_ms": 20.0 / total,
        "samples_per_s": 400.0 * total,
        "losses": [1.0, 0.5, 0.25],
        **more,
    }  # fmt: skip


def tuned(*rungs, **more):
    """What `tune --json` prints; a ladder of two where no rungs are given."""
    ladder = list(rungs) or [rung("workers=8", 2.0, 2.0, 2.2), rung("pin", 1.5, 3.0)]
    return {
        "schema": "stepscope.tune/2",
        "run": {
            "id": "tune-1", "folder": "/home/ann/project/.stepscope/tune-1",
            "program": "train.py", "argv": ["--data", "/home/ann/data"], "device": "cuda",
            "device_name": "NVIDIA H200", "torch": "2.11.0+cu130", "python": "3.12.3",
            "git": "abc123", "stepscope": "0.1.0", "finished": "2026-11-15T14:37:43+00:00",
        },
        "machine": {"cpu": {"model": "AMD EPYC"}, "gpus": [{"name": "NVIDIA H200"}]},
        "request": {"allow": "numeric", "objective": "throughput", "seeds": 3, "budget_s": 600.0,
                    "only": [], "skip": []},
        "scout": {"trial": 1, "findings": []},
        "baseline": {**MEASURED, "losses": [1.0, 0.5, 0.25]},
        "ladder": ladder,
        "rejected": [
            {"fix": "compile", "because": {"reason": "not_better"}, "state": "not_better",
             "speedup": 0.97, "low": 0.95, "high": 0.99, "verdict": "slower", "proof": None},
            {"fix": "affinity", "because": {"reason": "needs_device", "detail": "cuda"},
             "state": "left_out", "speedup": None, "proof": None},
        ],
        "untried": [],
        "final": {
            "fixes": [one["label"] for one in ladder], "speedup": 2.9, "low": 2.8, "high": 3.0,
            "verdict": "faster", "confirmed": True, "failure": None, "processes": [3, 3],
            "proof": {
                **PROOF, "trials": [2, 3, 4, 5], "ends": ["weights", "buffers", "optimizer state"],
            },
            "measured": {"baseline": MEASURED, "ladder": {**MEASURED, "step_ms": 6.9}},
        },
        "command": "stepscope run --fix workers=8 --fix pin train.py --data /home/ann/data",
        "patch": {
            "path": ".stepscope/tune-1/stepscope.patch", "text": "--- a/train.py\n+++ b/train.py\n",
            "edits": [{"fix": "pin", "file": "train.py", "line": 28, "words": "pass pin_memory"}],
            "by_hand": [], "speedup": 2.8, "low": 2.7, "high": 2.9, "verdict": "faster",
            "status": "measured",
        },
        "trials": 23,
        "seconds": 370.0,
        "stopped": None,
        "notes": [],
        **more,
    }  # fmt: skip


def tune_folder(folder, document=None):
    """The folder of a tune, its journal with a baseline, a control and a variant of two seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tune.json").write_text(json.dumps(document or tuned()))
    asks = [
        (2, {"fixes": [], "perturb": None}, [1.0, 0.6, 0.4]),
        (3, {"fixes": [], "perturb": "bfloat16"}, [1.0, 0.61, 0.41]),
        (4, {"fixes": ["pin"], "perturb": None}, [1.0, 0.62, 0.42]),
        (5, {"fixes": ["pin"], "perturb": None}, [1.0, 0.64, None]),
        (6, {"fixes": ["compile"], "perturb": None}, [9.0, 9.0, 9.0]),
    ]
    lines = [{"schema": "stepscope.tune-journal/2"}]
    for number, ask, losses in asks:
        trial = {"number": number, "ask": ask, "losses": losses, "status": "ok", "step_ms": []}
        lines.append({"trial": trial})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
