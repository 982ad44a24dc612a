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


def operator(name, **more):
    usual = {
        "name": name,
        "dtype": "tf32",
        "category": "convolution",
        "calls": 53.0,
        "kernels": 240.0,
        "time_ms": 9.94,
        "share": 0.31,
        "flops": 1.03e12,
        "bytes": 8.45e9,
        "flops_per_s": 1.04e14,
        "bytes_per_s": 8.5e11,
        "bound": "compute",
        "ceiling_share": 0.263,
        "counted": None,
    }
    return {**usual, **more}


NO_MODEL = dict.fromkeys(
    ("dtype", "category", "flops", "bytes", "flops_per_s", "bytes_per_s", "bound", "ceiling_share")
)


def kernels_document(operators=None, kernels=(), **more):
    found = {
        "model": "resnet50",
        "mode": "train",
        "batch": 64,
        "device": "cuda",
        "fixes": [],
        "on": "device",
        "work_ms": 31.9,
        "launched": 737.0,
        "known_share": 0.975,
        "ceilings": {"flops_per_s": {"bf16": 7e14}, "bytes_per_s": 4e12, "source": "measured"},
        "operators": operators or [operator("aten::convolution_backward")],
        "operators_in_all": 1,
        "kernels": list(kernels),
        "step": {
            "steps": 1,
            "wall_ns": 32_000_000,
            "matrix_known_share": 1.0,
            "matrix_flops": 1.555e12,
            "recomputed_flops": 0.0,
            "model_flops": 1.555e12,
            "flops_by_dtype": {"tf32": 1.555e12},
            "mfu": None,
            "ceiling_share": None,
        },
        **more,
    }
    machine = {"gpus": [{"name": "NVIDIA H200"}], "cpu": {"model": "EPYC"}, "torch": None}
    return {"machine": machine, "kernels": found, "notes": ["counted: 573 of 737 kernels"]}


def loader_point(batch, workers, rate, pin=False, prefetch=None, status="ok", why=None):
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


def loader_document(points=None, **more):
    points = points or [
        loader_point(batch, workers, 1000.0 * (workers or 1), pin, prefetch)
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
        "speedup": {
            "against": "default",
            "ratio": 31.96,
            "low": 30.0,
            "high": 34.0,
            "verdict": "FASTER",
        },
        "line": line,
        "by_batch": [],
    }
    return {"points": points, "loader": {**loader, **more}, "notes": ["pinning is left out"]}


SIDE = {
    "status": "ok", "why": None, "processes": 3, "samples_per_s": 100.0, "mean_ms": 160.0,
    "mean_low_ms": 158.0, "mean_high_ms": 162.0, "arithmetic": "fp32", "steps": 90,
    "epoch_s": 5.0, "train_s": 15.0, "loss": 0.2, "score": 0.91, "score_name": "dice",
    "peak_memory_bytes": 2 << 30,
}  # fmt: skip
ROW = {
    "kind": "convolution", "cpu_ms": 120.0, "cpu_share": 0.8, "gpu_ms": 1.0, "gpu_share": 0.6,
    "speedup": 120.0, "kernels": 40.0, "kernel_us": 25.0, "bound": "matrix products",
    "possible": 450.0, "why": "408 TFLOP/s against 900 GFLOP/s (tf32, fp32): 453× to be had",
}  # fmt: skip
CPU_GPU = {
    "name": "cpu-gpu",
    "model": "unet",
    "batch": 16,
    "fixes": [],
    "settings": {},
    "cpu": {**SIDE, "device": "cpu", "device_name": "AMD EPYC"},
    "gpu": {
        **SIDE, "device": "cuda", "device_name": "NVIDIA H200", "samples_per_s": 2000.0,
        "mean_ms": 8.0, "epoch_s": 0.25, "train_s": 0.75, "score": 0.912, "arithmetic": "tf32",
    },
    "speedup": {"against": "cpu", "ratio": 20.0, "low": 19.5, "high": 20.5, "verdict": "FASTER"},
    "saved": {"epoch_s": 4.75, "train_s": 14.25},
    "curves": {
        "losses": [{"step": n, "cpu": 1 / n, "gpu": 1 / n} for n in range(1, 91)],
        "scores": [{"step": 90, "cpu": 0.91, "gpu": 0.912, "cpu_s": 15.0, "gpu_s": 0.75}],
    },
    "agreement": {
        "first_steps": 10, "first_loss_relative": 0.00021, "final_loss_relative": 0.01,
        "final_score_difference": 0.002, "score_name": "dice", "within": 0.01, "same": True,
    },
    "operators": [ROW, {**ROW, "kind": "other", "gpu_ms": None, "gpu_share": None,
                        "speedup": None, "possible": None, "why": ""}],
    "waiting": {"step_ms": 8.0, "busy_ms": 2.0},
    "notes": [],
}  # fmt: skip

TECHNIQUE = {
    "technique": "fp32", "fixes": [], "accumulate": 1, "status": "ok", "why": None,
    "applies": True, "peak_memory_bytes": 1 << 30, "of_first": 1.0, "samples_per_s": 1000.0,
    "largest_batch": 60, "largest_micro_batch": 60, "too_large": 63, "bound": "memory",
    "bound_why": None, "largest_samples_per_s": 1100.0, "tries": [],
}  # fmt: skip
MEMORY = {
    "name": "memory",
    "model": "simple_cnn",
    "batch": 32,
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "memory_limit_gib": 2.0,
    "batch_limit": 65536,
    "settings": {},
    "rows": [
        TECHNIQUE,
        {**TECHNIQUE, "technique": "AMP", "fixes": ["amp=bf16"], "largest_batch": 116,
         "of_first": 0.55},
        {**TECHNIQUE, "technique": "accumulation", "fixes": ["accumulate=4"], "accumulate": 4,
         "largest_batch": 240, "largest_micro_batch": 60, "of_first": 0.4, "bound": "time"},
        {**TECHNIQUE, "technique": "fused attention", "fixes": ["sdpa"], "applies": False,
         "status": "not applicable", "why": "no attention was found", "largest_batch": None,
         "peak_memory_bytes": None, "of_first": None, "bound": None},
    ],
    "notes": [],
}  # fmt: skip
