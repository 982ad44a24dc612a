"""Every rule, in the order of `docs/findings.md`."""

from importlib.metadata import entry_points

from stepscope.diagnose.case import Rule
from stepscope.diagnose.rules import (
    compute_kernels,
    compute_precision,
    compute_settings,
    data_samples,
    data_workers,
    healthy,
    launch,
    launch_python,
    machine,
    memory,
    run,
    sync,
    transfer,
)

RULES: tuple[Rule, ...] = (
    data_workers.TOO_FEW_WORKERS,
    data_workers.FRESH_MEMORY,
    data_samples.GPU_AUGMENTATION,
    data_samples.LOADER_BOUND,
    data_workers.TOO_MANY_WORKERS,
    data_workers.NO_PERSISTENT_WORKERS,
    transfer.NO_PINNING,
    data_workers.NO_PREFETCH,
    data_workers.CPU_OVERSUBSCRIBED,
    data_samples.SLOW_STORAGE,
    data_samples.TINY_SAMPLES,
    transfer.DEVICE_TO_HOST,
    transfer.BLOCKING_COPIES,
    transfer.REPEATED_COPIES,
    transfer.COPIES_NOT_OVERLAPPED,
    sync.SYNC_EMPTY_CACHE,
    sync.SYNC_PRINT,
    sync.SYNC_CPU,
    sync.SYNC_ITEM,
    sync.SYNC_NONZERO,
    sync.SYNC_SYNCHRONIZE,
    sync.SYNC_TOGETHER,
    launch.GRAPH_BREAKS,
    launch.LAUNCH_BOUND,
    launch_python.PYTHON_HEAVY_FORWARD,
    launch_python.PYTHON_LOOPS,
    launch.RECOMPILES,
    launch.UNFUSED_OPTIMIZER,
    compute_kernels.CUDNN_BENCHMARK_OFF,
    compute_settings.DEBUG_MODES,
    compute_settings.FEW_THREADS,
    compute_kernels.LAYOUT_CHANGES,
    compute_precision.LOW_PRECISION,
    compute_kernels.NAIVE_ATTENTION,
    compute_precision.ODD_SIZES,
    compute_precision.SCALER_COLLAPSE,
    compute_settings.SMALL_BATCH,
    compute_kernels.UNFUSED_POINTWISE,
    memory.ACTIVATIONS_DOMINATE,
    memory.ALLOCATOR_RETRIES,
    memory.BATCH_COULD_GROW,
    memory.MEMORY_NEAR_LIMIT,
    memory.OPTIMIZER_STATE_DOMINATES,
    run.CHECKPOINT_SAVING,
    run.COMPILE_SHARE,
    run.EVALUATION_SHARE,
    run.STARTUP_SHARE,
    machine.FEW_CORES,
    machine.CPU_GOVERNOR,
    machine.NUMA_REMOTE,
    machine.OTHER_GPU_PROCESS,
    machine.POWER_CAP,
    machine.SLOW_PCIE_LINK,
    machine.GPU_THROTTLED,
    healthy.HEALTHY,
    healthy.DEVICE_LIMIT,
)


def all_rules() -> tuple[tuple[Rule, ...], list[str]]:
    """Ours and those of other packages (entry points `stepscope.rules`), and what failed to load.

    An entry point names a `Rule`; a second rule of one id is refused.
    """
    found, problems = list(RULES), []
    for point in sorted(entry_points(group="stepscope.rules"), key=lambda point: point.name):
        try:
            rule = point.load()
        except Exception as problem:
            problems.append(f"rule {point.name} ({point.value}) failed to load: {problem!r}")
            continue
        if not isinstance(rule, Rule):
            problems.append(f"rule {point.name} ({point.value}) is not a Rule")
        elif any(rule.id == one.id for one in found):
            problems.append(f"rule {point.name} ({point.value}): {rule.id} exists already")
        else:
            found.append(rule)
    return tuple(found), problems
