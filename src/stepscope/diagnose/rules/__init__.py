"""One rule per file: each has an `ID` and `look(case)`, which gives the findings of one cause."""

from importlib import import_module

from stepscope.diagnose.case import Case
from stepscope.record.finding import Finding

RULES: tuple[str, ...] = (
    "few_workers",
    "fresh_memory",
    "gpu_augmentation",
    "loader_bound",
    "many_workers",
    "no_persistent_workers",
    "no_pinning",
    "no_prefetch",
    "oversubscribed",
    "slow_storage",
    "tiny_samples",
    "device_to_host",
    "pageable_copies",
    "repeated_copies",
    "unoverlapped_copies",
    "empty_cache",
    "prints_tensors",
    "reads_tensors",
    "reads_values",
    "sized_results",
    "synchronizes",
    "waits_together",
    "graph_breaks",
    "launch_bound",
    "python_heavy_forward",
    "python_loops",
    "recompiles",
    "unfused_optimizer",
    "cudnn_benchmark_off",
    "debug_modes",
    "few_threads",
    "layout_changes",
    "low_precision",
    "naive_attention",
    "odd_sizes",
    "scaler_collapse",
    "small_batch",
    "unfused_pointwise",
    "activations_dominate",
    "allocator_retries",
    "batch_could_grow",
    "memory_near_limit",
    "optimizer_state_dominates",
    "checkpoint_saving",
    "compile_share",
    "evaluation_share",
    "startup_share",
    "few_cores",
    "governor",
    "numa_remote",
    "other_process",
    "power_cap",
    "slow_link",
    "throttled",
    "healthy",
)
"""Their files, in the order of `docs/findings.md`."""


def look(name: str, case: Case) -> list[Finding]:
    """What one rule finds."""
    module = import_module(f"stepscope.diagnose.rules.{name}")
    return list(module.look(case))
