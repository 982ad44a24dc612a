"""Handwritten cases for rules: a healthy run on either device, to be spoiled in one respect."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from documents import made

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.diagnose.case import Case
from stepscope.diagnose.source_edits import settings_advice
from stepscope.fixes.registry import FIX_NAMES
from stepscope.record.finding import ChangeKind, Confidence, Effort, Finding, Scope

PROGRAM = "/home/me/train.py"
"""The file in which everything in these documents happens."""
Document = dict[str, Any]


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    """A copy with changes; those in nested mappings are merged, all else is replaced."""
    result = dict(deepcopy(document))
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result


def loader(**changes: Any) -> Document:
    """A loader's arguments: 4 persistent workers, pinned batches of 32."""
    return {
        "id": 0, "batch_size": 32, "num_workers": 4, "pin_memory": True, "prefetch_factor": 2,
        "persistent_workers": True, "drop_last": True, "shuffle": True, "sampler": "RandomSampler",
        "dataset": "Images", "samples": 3200, "start_method": None, "file": PROGRAM, "line": 40,
    } | changes  # fmt: skip


def part(name: str, what: str, share: float, ms: float, **changes: Any) -> Document:
    """A part of a dataset's fetches; `ms` per sample."""
    place = {"file": PROGRAM, "line": 20} if what != "rest" else {"file": None, "line": None}
    return {"name": name, "what": what, "share": share, "ms_per_sample": ms} | place | changes


def dataset(ms_per_batch: float = 8.0, *parts: Document, **changes: Any) -> Document:
    """A dataset's fetches, of 32 samples each; half of it reading, half a transform."""
    each = ms_per_batch / 32
    usual = (
        part("train.py:22", "line", 0.5, 0.5 * each, line=22),
        part("Normalize", "transform", 0.4, 0.4 * each, line=31),
        part("default_collate", "collate", 0.1, 0.1 * each, file="/lib/torch/collate.py"),
    )
    return {
        "dataset": "Images", "file": PROGRAM, "line": 20, "processes": 4, "batches": 200,
        "samples": 6400, "ms_per_batch": ms_per_batch, "ms_per_sample": each,
        "collate_share": sum(p["share"] for p in parts or usual if p["what"] == "collate"),
        "parts": list(parts or usual),
    } | changes  # fmt: skip


def sync(what: str, lost_ms: float, count: int = 200, line: int = 60, **changes: Any) -> Document:
    """A line at which the host waits for the device; `lost_ms` over the whole run of 200 steps."""
    known = {"what": what, "count": count, "lost_ms": lost_ms, "bytes": None}
    return known | {"file": PROGRAM, "line": line} | changes


def copies(direction: str, memory: str, total_ms: float, **changes: Any) -> Document:
    """Copies of one direction in a window of 6 steps; `total_ms` over all of them."""
    return {
        "direction": direction, "memory": memory, "count": 12, "small": 0,
        "bytes": int(total_ms * 2e7), "total_ns": int(total_ms * 1e6), "bytes_per_s": 2e10,
        "overlapped": 0.0,
    } | changes  # fmt: skip


def show(device: str = "cuda", **changes: Any) -> Document:
    """A run as `show --json` has it: 200 steps of 20 ms, healthy; with changes."""
    on_gpu = device == "cuda"
    document: Document = {
        "schema": "stepscope.show/2",
        "run": {"id": "a", "program": "train.py", "device": device, "folder": "/runs/a",
                "torch": "2.13.0", "exit_code": 0, "complete": True, "window": 6,
                "error": None, "out_of_memory": None},
        "steps": {"count": 200, "what": "training", "inferred": False, "mean_ms": 20.0,
                  "median_ms": 20.0, "p95_ms": 20.6, "std_ms": 0.3, "samples_per_s": 1600.0,
                  "samples_per_step": 32.0, "warmup_steps": 2, "window_steps": 10,
                  "measured_steps": 188, "by_optimizer": [{"name": "AdamW", "count": 200}],
                  "spikes": [], "spike_count": 0, "drift": 0.0},
        "account_s": {"startup": 0.1, "imports": 3.0, "setup": 0.5, "compile": 0.0, "warmup": 0.5,
                      "training": 60.0, "evaluation": 0.0, "checkpoint": 0.0, "epoch_start": 0.05,
                      "window": 1.5, "shutdown": 0.3},
        "account_places": {"training": {"file": PROGRAM, "line": 58}},
        "losses": [1.0] * 200,
        "phases_ms": {"data_wait": 0.1, "h2d": 0.1 if on_gpu else 0.0, "forward": 6.8,
                      "backward": 11.0, "optimizer": 1.5, "other": 0.5 if on_gpu else 0.6},
        "phases_seen_by": "device" if on_gpu else "host",
        "phases_host_ms": {"data_wait": 0.1, "h2d": 0.1 if on_gpu else 0.0, "forward": 6.8,
                           "backward": 11.0, "optimizer": 1.5, "wait": 0.0,
                           "other": 0.5 if on_gpu else 0.6},
        "phases_device_ms": {"h2d": 0.1, "forward": 6.9, "backward": 11.1, "optimizer": 1.5,
                             "other": 0.4} if on_gpu else None,
        "gpu": {"name": "NVIDIA H200", "busy_fraction": 0.97, "utilization_percent": 96.0,
                "peak_allocated_bytes": 60_000_000_000, "peak_reserved_bytes": 62_000_000_000,
                "total_bytes": 150_754_820_096, "allocator_retries": 0, "energy_j": 3000.0,
                "energy_j_per_step": 10.0, "power_w": 500.0, "sm_mhz": 1980.0,
                "temperature_c": 55.0, "throttled_by": [], "other_processes": 0.0,
                "kernels_per_step": 400.0} if on_gpu else None,
        "host": {"cpu_percent": 250.0, "peak_rss_bytes": 2e9, "processes": 5.0,
                 "read_bytes": 1e6, "write_bytes": 1e7},
        "memory": {"device": device, "peak_bytes": 60_000_000_000 if on_gpu else 2e9,
                   "owners": {"parameters": 100_000_000, "gradients": 100_000_000,
                              "optimizer_state": 200_000_000, "buffers": 0,
                              "activations": 1_000_000_000}, "lines": None},
        "loaders": [loader(pin_memory=on_gpu)],
        "pipeline": [dataset()],
        "syncs": [],
        "sites": [site("backward", 58, 2200.0), site("forward", 56, 1360.0),
                  site("optimizer", 59, 300.0), site("data_wait", 50, 20.0)],
        "sinks": [],
        "config": {
            "models": [{"name": "Net", "parameters": 25_000_000, "trainable": 25_000_000,
                        "dtypes": {"float32": 25_000_000},
                        "devices": ["cuda:0" if on_gpu else "cpu"],
                        "memory_format": "contiguous", "training": True, "compiled": False,
                        "ddp": False}],
            "optimizers": [{"id": 0, "name": "AdamW", "parameters": 160, "groups": 1, "lr": 1e-3,
                            "foreach": None, "fused": True, "capturable": False}],
            "autocast": "bfloat16" if on_gpu else None, "scaler": None, "compile": [],
            "distributed": None, "roots": ["Net"], "environment": {},
            "switches": {"tf32_matmul": "high", "tf32_cudnn": True, "cudnn_benchmark": True,
                         "cudnn_deterministic": False, "deterministic": False,
                         "anomaly_detection": False, "threads": 8},
            "machine": {
                "cpu": {"model": "CPU", "physical_cores": 16, "logical_cores": 16,
                        "usable_cores": 16, "governor": None, "numa_nodes": 1,
                        "load_average": [1.0, 1.0, 1.0], "virtual": True},
                "memory": {"total_bytes": 128 << 30, "available_bytes": 120 << 30,
                           "limit_bytes": None},
                "gpus": [gpu_facts()] if on_gpu else [], "topology": [],
            },
        },
        "compile": None,
        "windows": [{"name": "window", "first": 10, "last": 15}],
        "timeline": None,
        "timeline_stacks": None,
        "host_code": None,
        "fixes": [],
        "problems": [],
    }  # fmt: skip
    return merged(document, changes)


def site(what: str, line: int, total_ms: float, count: int = 200) -> Document:
    """A source line in a phase; `total_ms` over `count` times."""
    return {
        "what": what, "file": PROGRAM, "line": line, "function": "main", "count": count,
        "total_ms": total_ms,
    }  # fmt: skip


def gpu_facts(**changes: Any) -> Document:
    """A GPU as the machine's facts have it."""
    return {
        "index": 0, "name": "NVIDIA H200", "memory_bytes": 150_754_820_096,
        "compute_capability": "9.0", "power_limit_w": 700.0, "pcie_generation": 5,
        "pcie_width": 16, "pcie_generation_max": 5, "pcie_width_max": 16, "numa_node": None,
        "cpu_affinity": "0-15", "mig": False, "energy_counter": True, "processes": 0,
    } | changes  # fmt: skip


def trace(device: str = "cuda", **changes: Any) -> Document:
    """The window of that run as `analyze --json` has it: 6 steps of 24 ms; with changes."""
    on_gpu = device == "cuda"
    causes = ("loader", "host", "synchronisation", "copy", "other_ranks", "between_kernels",
              "unknown")  # fmt: skip
    document: Document = {
        "schema": "stepscope.analyze/2",
        "source": {"file": "window.json.gz", "tool": "kineto", "rank": None, "world_size": None,
                   "backend": None, "device": "NVIDIA H200" if on_gpu else None,
                   "span_ns": 144_000_000,
                   "has": {"device": on_gpu, "operators": True, "shapes": True, "stacks": False,
                           "memory": True}},
        "quality": {"truncated": False, "notes": [], "graph_kernels": 0, "profiler_share": 0.0},
        "steps": {"count": 6, "what": "training", "how": "ProfilerStep", "mean_ms": 24.0,
                  "median_ms": 24.0, "each": []},
        "breakdown_ns": {"compute": 116_000_000, "copy": 500_000, "communication": 0,
                         "exposed_communication": 0, "exposed_copy": 100_000,
                         "idle": 27_900_000, "wall": 144_000_000}
        if on_gpu else {"compute": None, "copy": None, "communication": None,
                        "exposed_communication": None, "exposed_copy": None, "idle": None,
                        "wall": 144_000_000},
        "idle_ns": dict.fromkeys(causes, 0) | {"between_kernels": 1_000_000, "host": 26_900_000}
        if on_gpu else dict.fromkeys(causes),
        "devices": [],
        "kernels": [kernel("gemm", 100_000_000, category="matmul", tensor_core=True),
                    kernel("elementwise", 16_000_000, category="pointwise")] if on_gpu else [],
        "by": {"category": [], "operator": [], "module": [], "line": [], "phase": []},
        "tensor_cores": {"share": 0.86, "matrix_share": 1.0, "unknown_share": 0.0}
        if on_gpu else {"share": None, "matrix_share": None, "unknown_share": None},
        "occupancy": 0.7 if on_gpu else None,
        "operators": [],
        "launch": {"kernels": 2400 if on_gpu else 0, "kernels_per_step": [400 * on_gpu] * 6,
                   "latency": {"p50_ns": 2_000_000.0 if on_gpu else None},
                   "call": {"mean_ns": 6000.0 if on_gpu else None},
                   "shorter_than_launch": 0.1 if on_gpu else None,
                   "shorter_than_5us": 0.05 if on_gpu else None,
                   "graph_launches": 0, "graph_kernels": 0, "graph_ns": 0, "without_launch": 0,
                   "without_launch_ns": 0, "blocked": [], "queues": []},
        "copies": [copies("HtoD", "pinned", 0.5, overlapped=0.8)] if on_gpu else [],
        "roofline": None,
        "memory": None,
        "host": {"operators": [], "lines": None, "threads": [],
                 "runtime": [runtime("cudaLaunchKernel", 2400, 12.0)] if on_gpu else [],
                 "overhead": {"total_ns": 0, "share": 0.0, "by_name": []}, "serial": None},
        "communication": None,
        "critical_path": None,
    }  # fmt: skip
    return merged(document, changes)


def idle_for_host(busy_ms: float, kernels: int = 400) -> Document:
    """A window of 6 steps of 24 ms whose device works so long in each."""
    busy, wall = int(6 * busy_ms * 1e6), 144_000_000
    return trace(
        breakdown_ns={"compute": busy, "idle": wall - busy, "exposed_copy": 0, "copy": 0},
        idle_ns={"host": wall - busy, "between_kernels": 0},
        launch={"kernels": 6 * kernels, "kernels_per_step": [kernels] * 6, "shorter_than_5us": 0.7},
    )


def kernel(name: str, total_ns: int, count: int = 1200, **changes: Any) -> Document:
    """All kernels of one name in the window."""
    return {
        "name": name, "category": "other", "count": count, "total_ns": total_ns,
        "mean_ns": total_ns / count, "min_ns": 0, "max_ns": total_ns, "share": total_ns / 116e6,
        "tensor_core": False, "occupancy": 0.7, "histogram": {},
    } | changes  # fmt: skip


def runtime(name: str, count: int, total_ms: float) -> Document:
    """Calls of the CUDA runtime in the window."""
    spent = int(total_ms * 1e6)
    return {"name": name, "count": count, "self_ns": spent, "total_ns": spent}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gives."""

    step_ms: float


class Replay:
    """Stands for a replayed window: whatever is changed, a step takes `after` ms of 20.

    `after` may tell by the changes. The changes it was asked for are kept in `asked`.
    """

    error = 0.02

    def __init__(self, after: Any, step_ms: float = 20.0) -> None:
        self.step_ms, self._after = step_ms, after
        self.asked: list[tuple[Any, ...]] = []

    def replay(self, *changes: Any) -> Replayed:
        self.asked.append(changes)
        after = self._after(*changes) if callable(self._after) else self._after
        return Replayed(float(after))

    def host_share(self, chosen: Any) -> float:
        """All of it: every change is replayed."""
        return 1.0


def case(
    device: str = "cuda",
    show: Document | None = None,
    trace: Document | None = None,
    after: Any = None,
    source: Mapping[int, str] | None = None,
) -> Case:
    """A case of these documents; `after`: the replayed step, ms; `source`: lines of PROGRAM."""
    document = show or {}
    timed = document or trace or {}
    step_ms = float((timed.get("steps") or {}).get("mean_ms") or 0.0)
    cpu = ((document.get("config") or {}).get("machine") or {}).get("cpu") or {}
    lines = source or {}
    return Case(
        step_ms=step_ms,
        device=device,
        cores=float(cpu.get("usable_cores") or 0),
        phases=document.get("phases_ms") or {},
        show=None if show is None else made(RunSummary, show),
        trace=None if trace is None else made(TraceAnalysis, trace),
        model=None if after is None else Replay(after, step_ms),
        source=lambda file, line: lines.get(line) if file == PROGRAM else None,
    )


def sound(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Findings by id, each as people can read it: short, complete, with a fix that exists."""
    by_id = {}
    for one in findings:
        assert len(one.title) <= 60, one.title
        assert len(re.findall(r"[.!?](?= |$)", one.why)) <= 2, one.why
        assert settings_advice(one).endswith("."), one.advice
        assert 0 <= one.share <= 1
        assert one.evidence
        assert isinstance(one.effort, Effort)
        assert isinstance(one.kind, ChangeKind)
        assert isinstance(one.confidence, Confidence)
        assert isinstance(one.scope, Scope)
        assert one.fix is None or one.fix.name in FIX_NAMES
        assert one.predicted is None or one.predicted.low <= one.predicted.high
        by_id[one.id] = one
    return by_id
