"""Every rule, in the order of `docs/findings.md`."""

from stepscope.diagnose.case import Rule
from stepscope.diagnose.rules.compute_kernels import (
    CUDNN_BENCHMARK_OFF,
    LAYOUT_CHANGES,
    NAIVE_ATTENTION,
    UNFUSED_POINTWISE,
)
from stepscope.diagnose.rules.compute_precision import LOW_PRECISION, ODD_SIZES, SCALER_COLLAPSE
from stepscope.diagnose.rules.compute_settings import DEBUG_MODES, FEW_THREADS, SMALL_BATCH
from stepscope.diagnose.rules.data_samples import (
    GPU_AUGMENTATION,
    LOADER_BOUND,
    SLOW_STORAGE,
    TINY_SAMPLES,
)
from stepscope.diagnose.rules.data_workers import (
    CPU_OVERSUBSCRIBED,
    FRESH_MEMORY,
    NO_PERSISTENT_WORKERS,
    NO_PREFETCH,
    TOO_FEW_WORKERS,
    TOO_MANY_WORKERS,
)
from stepscope.diagnose.rules.healthy import DEVICE_LIMIT, HEALTHY
from stepscope.diagnose.rules.launch import (
    GRAPH_BREAKS,
    LAUNCH_BOUND,
    RECOMPILES,
    UNFUSED_OPTIMIZER,
)
from stepscope.diagnose.rules.launch_python import PYTHON_HEAVY_FORWARD, PYTHON_LOOPS
from stepscope.diagnose.rules.machine import (
    CPU_GOVERNOR,
    FEW_CORES,
    GPU_THROTTLED,
    NUMA_REMOTE,
    OTHER_GPU_PROCESS,
    POWER_CAP,
    SLOW_PCIE_LINK,
)
from stepscope.diagnose.rules.memory import (
    ACTIVATIONS_DOMINATE,
    ALLOCATOR_RETRIES,
    BATCH_COULD_GROW,
    MEMORY_NEAR_LIMIT,
    OPTIMIZER_STATE_DOMINATES,
)
from stepscope.diagnose.rules.run import (
    CHECKPOINT_SAVING,
    COMPILE_SHARE,
    EVALUATION_SHARE,
    STARTUP_SHARE,
)
from stepscope.diagnose.rules.sync import (
    SYNC_CPU,
    SYNC_EMPTY_CACHE,
    SYNC_ITEM,
    SYNC_NONZERO,
    SYNC_PRINT,
    SYNC_SYNCHRONIZE,
    SYNC_TOGETHER,
)
from stepscope.diagnose.rules.transfer import (
    BLOCKING_COPIES,
    COPIES_NOT_OVERLAPPED,
    DEVICE_TO_HOST,
    NO_PINNING,
    REPEATED_COPIES,
)

RULES: tuple[Rule, ...] = (
    TOO_FEW_WORKERS,
    FRESH_MEMORY,
    GPU_AUGMENTATION,
    LOADER_BOUND,
    TOO_MANY_WORKERS,
    NO_PERSISTENT_WORKERS,
    NO_PINNING,
    NO_PREFETCH,
    CPU_OVERSUBSCRIBED,
    SLOW_STORAGE,
    TINY_SAMPLES,
    DEVICE_TO_HOST,
    BLOCKING_COPIES,
    REPEATED_COPIES,
    COPIES_NOT_OVERLAPPED,
    SYNC_EMPTY_CACHE,
    SYNC_PRINT,
    SYNC_CPU,
    SYNC_ITEM,
    SYNC_NONZERO,
    SYNC_SYNCHRONIZE,
    SYNC_TOGETHER,
    GRAPH_BREAKS,
    LAUNCH_BOUND,
    PYTHON_HEAVY_FORWARD,
    PYTHON_LOOPS,
    RECOMPILES,
    UNFUSED_OPTIMIZER,
    CUDNN_BENCHMARK_OFF,
    DEBUG_MODES,
    FEW_THREADS,
    LAYOUT_CHANGES,
    LOW_PRECISION,
    NAIVE_ATTENTION,
    ODD_SIZES,
    SCALER_COLLAPSE,
    SMALL_BATCH,
    UNFUSED_POINTWISE,
    ACTIVATIONS_DOMINATE,
    ALLOCATOR_RETRIES,
    BATCH_COULD_GROW,
    MEMORY_NEAR_LIMIT,
    OPTIMIZER_STATE_DOMINATES,
    CHECKPOINT_SAVING,
    COMPILE_SHARE,
    EVALUATION_SHARE,
    STARTUP_SHARE,
    FEW_CORES,
    CPU_GOVERNOR,
    NUMA_REMOTE,
    OTHER_GPU_PROCESS,
    POWER_CAP,
    SLOW_PCIE_LINK,
    GPU_THROTTLED,
    HEALTHY,
    DEVICE_LIMIT,
)
