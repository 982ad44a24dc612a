"""Every rule, in the order of `docs/findings.md`."""

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
    ranks,
    run,
    sync,
    transfer,
)
from stepscope.record.version import entry_points

RULES: tuple[Rule, ...] = (
    data_workers.too_few_workers,
    data_workers.fresh_memory,
    data_samples.gpu_augmentation,
    data_samples.loader_bound,
    data_workers.too_many_workers,
    data_workers.no_persistent_workers,
    transfer.no_pinning,
    data_workers.no_prefetch,
    data_workers.cpu_oversubscribed,
    data_samples.slow_storage,
    data_samples.slow_decoding,
    data_samples.tiny_samples,
    transfer.device_to_host,
    transfer.blocking_copies,
    transfer.repeated_copies,
    transfer.copies_not_overlapped,
    sync.sync_empty_cache,
    sync.sync_print,
    sync.sync_cpu,
    sync.sync_item,
    sync.sync_nonzero,
    sync.sync_synchronize,
    sync.sync_together,
    launch.graph_breaks,
    launch.launch_bound,
    launch_python.python_heavy_forward,
    launch_python.python_loops,
    launch_python.other_code,
    launch.recompiles,
    launch.unfused_optimizer,
    compute_kernels.cudnn_benchmark_off,
    compute_settings.debug_modes,
    compute_settings.few_threads,
    compute_kernels.layout_changes,
    compute_precision.low_precision,
    compute_kernels.naive_attention,
    compute_precision.odd_sizes,
    compute_precision.scaler_collapse,
    compute_settings.small_batch,
    compute_kernels.unfused_pointwise,
    memory.activations_dominate,
    memory.allocator_retries,
    memory.batch_could_grow,
    memory.memory_near_limit,
    memory.optimizer_state_dominates,
    ranks.straggler,
    ranks.same_data,
    run.checkpoint_saving,
    run.compile_share,
    run.evaluation_share,
    run.startup_share,
    machine.idle_gpu,
    machine.data_parallel,
    machine.few_cores,
    machine.cpu_governor,
    machine.numa_remote,
    machine.other_gpu_process,
    machine.power_cap,
    machine.slow_pcie_link,
    machine.gpu_throttled,
    healthy.healthy,
    healthy.device_limit,
)


def all_rules() -> tuple[tuple[Rule, ...], list[str]]:
    """Our rules, those of other packages (entry points `stepscope.rules`), and problems loading
    them.

    An entry point names a `Rule`; a rule with an id already taken is refused.
    """
    found, problems = list(RULES), []
    for point in entry_points("stepscope.rules"):
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
