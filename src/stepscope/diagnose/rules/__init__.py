"""Every rule, in the order of `docs/findings.md`."""

from stepscope.diagnose.case import Rule
from stepscope.diagnose.rules.activations_dominate import ACTIVATIONS_DOMINATE
from stepscope.diagnose.rules.allocator_retries import ALLOCATOR_RETRIES
from stepscope.diagnose.rules.batch_could_grow import BATCH_COULD_GROW
from stepscope.diagnose.rules.checkpoint_saving import CHECKPOINT_SAVING
from stepscope.diagnose.rules.compile_share import COMPILE_SHARE
from stepscope.diagnose.rules.cudnn_benchmark_off import CUDNN_BENCHMARK_OFF
from stepscope.diagnose.rules.debug_modes import DEBUG_MODES
from stepscope.diagnose.rules.device_to_host import DEVICE_TO_HOST
from stepscope.diagnose.rules.empty_cache import SYNC_EMPTY_CACHE
from stepscope.diagnose.rules.evaluation_share import EVALUATION_SHARE
from stepscope.diagnose.rules.few_cores import FEW_CORES
from stepscope.diagnose.rules.few_threads import FEW_THREADS
from stepscope.diagnose.rules.few_workers import TOO_FEW_WORKERS
from stepscope.diagnose.rules.fresh_memory import FRESH_MEMORY
from stepscope.diagnose.rules.governor import CPU_GOVERNOR
from stepscope.diagnose.rules.gpu_augmentation import GPU_AUGMENTATION
from stepscope.diagnose.rules.graph_breaks import GRAPH_BREAKS
from stepscope.diagnose.rules.healthy import DEVICE_LIMIT, HEALTHY
from stepscope.diagnose.rules.launch_bound import LAUNCH_BOUND
from stepscope.diagnose.rules.layout_changes import LAYOUT_CHANGES
from stepscope.diagnose.rules.loader_bound import LOADER_BOUND
from stepscope.diagnose.rules.low_precision import LOW_PRECISION
from stepscope.diagnose.rules.many_workers import TOO_MANY_WORKERS
from stepscope.diagnose.rules.memory_near_limit import MEMORY_NEAR_LIMIT
from stepscope.diagnose.rules.naive_attention import NAIVE_ATTENTION
from stepscope.diagnose.rules.no_persistent_workers import NO_PERSISTENT_WORKERS
from stepscope.diagnose.rules.no_pinning import NO_PINNING
from stepscope.diagnose.rules.no_prefetch import NO_PREFETCH
from stepscope.diagnose.rules.numa_remote import NUMA_REMOTE
from stepscope.diagnose.rules.odd_sizes import ODD_SIZES
from stepscope.diagnose.rules.optimizer_state_dominates import OPTIMIZER_STATE_DOMINATES
from stepscope.diagnose.rules.other_process import OTHER_GPU_PROCESS
from stepscope.diagnose.rules.oversubscribed import CPU_OVERSUBSCRIBED
from stepscope.diagnose.rules.pageable_copies import BLOCKING_COPIES
from stepscope.diagnose.rules.power_cap import POWER_CAP
from stepscope.diagnose.rules.prints_tensors import SYNC_PRINT
from stepscope.diagnose.rules.python_heavy_forward import PYTHON_HEAVY_FORWARD
from stepscope.diagnose.rules.python_loops import PYTHON_LOOPS
from stepscope.diagnose.rules.reads_tensors import SYNC_CPU
from stepscope.diagnose.rules.reads_values import SYNC_ITEM
from stepscope.diagnose.rules.recompiles import RECOMPILES
from stepscope.diagnose.rules.repeated_copies import REPEATED_COPIES
from stepscope.diagnose.rules.scaler_collapse import SCALER_COLLAPSE
from stepscope.diagnose.rules.sized_results import SYNC_NONZERO
from stepscope.diagnose.rules.slow_link import SLOW_PCIE_LINK
from stepscope.diagnose.rules.slow_storage import SLOW_STORAGE
from stepscope.diagnose.rules.small_batch import SMALL_BATCH
from stepscope.diagnose.rules.startup_share import STARTUP_SHARE
from stepscope.diagnose.rules.synchronizes import SYNC_SYNCHRONIZE
from stepscope.diagnose.rules.throttled import GPU_THROTTLED
from stepscope.diagnose.rules.tiny_samples import TINY_SAMPLES
from stepscope.diagnose.rules.unfused_optimizer import UNFUSED_OPTIMIZER
from stepscope.diagnose.rules.unfused_pointwise import UNFUSED_POINTWISE
from stepscope.diagnose.rules.unoverlapped_copies import COPIES_NOT_OVERLAPPED
from stepscope.diagnose.rules.waits_together import SYNC_TOGETHER

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
