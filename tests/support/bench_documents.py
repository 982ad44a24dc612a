"""Benchmark documents written by hand."""

_NOTHING = dict.fromkeys(
    (
        "why", "samples_per_s", "batches_per_s", "mean_ms", "mean_low_ms", "mean_high_ms", "std_ms",
        "p50_ms", "p95_ms", "p99_ms", "epoch_s", "loss", "score", "score_name", "steps",
        "time_to_score_s", "first_token_ms", "token_ms", "tokens_per_s", "peak_memory_bytes",
        "gpu_busy", "flops_per_sample", "tflops_per_s", "mfu", "arithmetic", "energy_j_per_sample",
        "carbon_g_per_million", "cost_per_million", "first_calls_s", "clock", "unstable_why",
        "speedup",
    )
)  # fmt: skip


def point(batch=32, fixes=(), mean_ms=20.0, ratio=None, verdict="FASTER", **more):
    """A measured point; `ratio` is its speedup against "none"."""
    fixes = list(fixes)
    found = {
        **_NOTHING,
        "model": "resnet18",
        "mode": "train",
        "batch": batch,
        "device": "cuda",
        "fixes": fixes,
        "variant": ",".join(fixes) or "none",
        "status": "ok",
        "not_applied": [],
        "rounds": 3,
        "samples_per_s": batch / mean_ms * 1e3,
        "batches_per_s": 1e3 / mean_ms,
        "mean_ms": mean_ms,
        "mean_low_ms": mean_ms * 0.99,
        "mean_high_ms": mean_ms * 1.01,
        "p50_ms": mean_ms,
        "p95_ms": mean_ms * 1.1,
        "p99_ms": mean_ms * 1.2,
        "peak_memory_bytes": 3 << 30,
        "unstable": False,
        "notes": [],
        **more,
    }
    found.setdefault("key", f"{found['model']}|{found['mode']}|{batch}|{found['device']}|{fixes}")
    if ratio is not None:
        found["speedup"] = {
            "against": "none",
            "ratio": ratio,
            "low": ratio * 0.98,
            "high": ratio * 1.02,
            "verdict": verdict,
        }
    return found


def failed(status, why, **more):
    """A point that could not be measured."""
    return {**point(**more), **_NOTHING, "status": status, "why": why, "unstable": False}


def document(*points, **more):
    """What `--json` prints."""
    return {
        "schema": "stepscope.bench/1",
        "machine": {
            "cpu": {"model": "AMD EPYC"},
            "gpus": [{"name": "NVIDIA H200"}],
            "torch": {"version": "2.11.0+cu130", "cuda": "13.0"},
            "driver": "580.1",
        },
        "versions": {"stepscope": "0.1.0"},
        "command": "stepscope bench resnet18",
        "started": "2026-11-15T10:00:00+00:00",
        "request": {"ablate": [], **more.pop("request", {})},
        "noise_floor": None,
        "points": list(points),
        "notes": [],
        **more,
    }
