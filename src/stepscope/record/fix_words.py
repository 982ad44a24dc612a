"""What a fix did, in words: the one place where its records become sentences.

Here rather than in `report`, since the program's own process prints the one for a fix that broke
it, and documents keep them beside the records.
"""

from typing import Any, Final

from stepscope.record.fix import (
    Applied,
    DataChange,
    FixOutcome,
    NotApplied,
    Reason,
    SourceLine,
    Target,
    Trait,
    TraitKind,
    Variation,
)

_LOADER: Final = "DataLoader{at}"
_CALLED: Final = "{object}, called{at}"
_APPLIED: Final = {
    Target.LOADER: f"{_LOADER}{{change}}",
    Target.LOADER_WORKERS: f"{_LOADER}{{change}}",
    Target.SAMPLES: f"samples of the {_LOADER}, up to {{size}}",
    Target.SAMPLES_THAT_FIT: f"{{count:,}}{{total}} samples of the {_LOADER} fit into {{size}}",
    Target.COPY: "the copy{at} no longer waits",
    Target.SYNCHRONIZE: "torch.cuda.synchronize{at}",
    Target.ITEM: ".item(){at}",
    Target.MODEL: _CALLED,
    Target.AUTOCAST: "{object} in {dtype} on {device}",
    Target.TF32: "{object}, TF32 {after}",
    Target.TF32_SETTING: "over the program's own setting at {overrides}",
    Target.CONVOLUTIONS: "the convolutions of {object}",
    Target.BLOCKS: "{count} blocks ({detail}) of {object}, called{at}",
    Target.OWN_LAYERS: "the layers of {detail}{object}, called{at}",
    Target.GRAPH: "forward and backward of {object}, called{at}, for inputs of {detail}",
    Target.GRAPHED_STEP: "the step of {object}{at}",
    Target.OPTIMIZER: "{object} made{at}",
    Target.GATHERED_STEPS: (
        "{object}, which steps{at} once in {after} batches; learning rate schedulers still advance"
        " with every batch"
    ),
    Target.THREADS: "{before} → {after} threads",
    Target.THREADS_SETTING: "{after} threads where {overrides} asks for {before}",
    Target.CORES: "{count} of {all} cores: those of the GPU's NUMA node {after}",
    Target.ALLOCATOR: "the program's CUDA allocator",
    Target.FUSED_KEPT_ON: "fused attention kept on{at}",
    Target.FUSED_ALLOWED: "fused attention allowed{at}",
    Target.ATTENTION_IMPLEMENTATION: '{object} with attn_implementation="{after}"',
    Target.ATTENTION: "MultiheadAttention{at}, whose weights are not used",
    Target.OTHER: "{detail}",
}
_REMARKS: Final = {
    Target.SYNCHRONIZE: "; the program's own timings there no longer wait for the device",
    Target.AUTOCAST: ", as this device has no bf16",
}
_DATA: Final = {
    DataChange.DRAWS: "other random draws",
    DataChange.ORDER: "samples come in another order",
    DataChange.SAMPLES: "other samples",
    DataChange.SHUFFLES: "other shuffles",
    DataChange.ROUNDING: "other rounding",
}
_TRAITS: Final = {
    TraitKind.USES: "`{code}`{at}",
    TraitKind.HOLDS: "it holds a {code}",
    TraitKind.RUNS: "it runs a {code}",
    TraitKind.SETS: "`{code}` is set{at}",
    TraitKind.ITERATES: "it holds a {code}, which goes on from sample to sample",
    TraitKind.OPEN_FILE: "{library}",
    TraitKind.NAMES_GPU: "names the GPU{in_code}",
    TraitKind.HOLDS_GPU_TENSORS: "holds tensors on the GPU",
    TraitKind.MOVES_TO_GPU: "moves data to the GPU (`{code}`{at})",
    TraitKind.ASKS_WORKER: "the dataset asks which worker it runs in",
    TraitKind.SAMPLER_SHARES_GENERATOR: "the sampler draws from the program's own generator",
    TraitKind.SAMPLER_MAY_DRAW: "the sampler may draw as it goes: {because}",
    TraitKind.EPOCH_LEFT_EARLY: (
        "the loop leaves epochs early, when the loader's generator has been read ahead"
    ),
    TraitKind.UNKNOWN_NAME: "`{code}`{at} is not known",
    TraitKind.UNKNOWN_CLASS: "what {code} does is not known",
    TraitKind.TOO_LARGE: "it is too large to look through",
    TraitKind.TOO_MUCH_CODE: "there is too much code to look through",
    TraitKind.UNREADABLE: "looking through it failed ({code})",
}
_SAMPLER: Final = (TraitKind.SAMPLER_SHARES_GENERATOR, TraitKind.SAMPLER_MAY_DRAW)
_OPEN: Final = {
    "h5py": "an open HDF5 file",
    "sqlite3": "an open SQLite connection",
    "lmdb": "an open LMDB environment",
    "zipfile": "an open zip file",
    "tarfile": "an open tar file",
    "netCDF4": "an open netCDF file",
}
_CONTIGUOUS: Final = "needs contiguous memory; use `reshape`"
_SYNCHRONIZES: Final = "may depend on torch.cuda.synchronize, so it stays"
_MIXED: Final = "the program uses mixed precision itself"
_NO_SPARSE: Final = "fused optimizers take no sparse gradients"
_REASONS: Final = {
    Reason.OTHER: "{detail}",
    Reason.NOTHING_FOUND: "{detail}",
    Reason.INSTALL_FAILED: "it could not be installed: {error}",
    Reason.NO_TORCH: "the program did not import torch",
    Reason.NO_CUDA: "there is no CUDA device here",
    Reason.NO_AFFINITY: "this system does not let a program choose its cores",
    Reason.ONE_NUMA_NODE: "this machine has one NUMA node",
    Reason.GPU_NODE_UNKNOWN: "it is not known which NUMA node the GPU belongs to",
    Reason.CORES_NOT_ALLOWED: "this process may not use the cores of the GPU's NUMA node {value}",
    Reason.ON_NODE_ALREADY: "the program already runs on the GPU's NUMA node {value} only",
    Reason.THREADS_ALREADY: "torch already uses {value} threads",
    Reason.OWN_BATCH_SAMPLER: "{subject} has its own batch sampler",
    Reason.NOT_BATCHED: "{subject} does not form batches",
    Reason.BATCH_SIZE_ALREADY: "{subject} already has batch size {value}",
    Reason.SINGLE_SAMPLES: "{subject} has batch size 1",
    Reason.EPOCH_TOO_SMALL: "{subject} has only {value} samples",
    Reason.FIXED_BATCH_SIZE: (
        "the program relies on batches of {value}; have it use the batch's own size"
    ),
    Reason.OUT_OF_MEMORY: "a batch of {value} does not fit into memory; try a smaller one",
    Reason.FREE_MEMORY_UNKNOWN: "how much memory is free is not known here; give a size: cache=4G",
    Reason.HAS_WORKERS: "{subject} has workers, which would each keep samples of their own",
    Reason.HAS_NO_WORKERS: "{subject} has no workers; ask for them with --fix workers",
    Reason.WORKERS_ALREADY: "{subject} already has {value} workers",
    Reason.KEEPS_WORKERS: "{subject} already keeps its workers",
    Reason.ITERABLE_DATASET: "{subject}: samples of an IterableDataset have no index",
    Reason.IN_MEMORY: "{subject}: a TensorDataset is already in memory",
    Reason.SAMPLES_VARY: "{subject}: {varies}",
    Reason.UNCOPYABLE: "samples of {subject} cannot be copied",
    Reason.CUDA_IN_DATASET: "{subject}: its dataset {trait}",
    Reason.CUDA_IN_WORKERS: "{subject}: its dataset {trait}; keep its samples on the CPU",
    Reason.OPEN_HANDLE: "{subject}: its dataset holds {trait}; open it at the first sample instead",
    Reason.EACH_WORKER_ALL_DATA: (
        "{subject}: each worker would give all the data of its IterableDataset; have it ask"
        " torch.utils.data.get_worker_info() for its share"
    ),
    Reason.DATASET_CHANGED: (
        "the dataset of {subject} is changed between epochs, so workers are started anew"
    ),
    Reason.GPU_IN_WORKER: (
        "the dataset uses the GPU, which worker processes cannot; move its samples in the training"
        " loop instead"
    ),
    Reason.SHARED_MEMORY_FULL: (
        "there is too little shared memory (/dev/shm) for batches from workers; give the container"
        " more (docker: --shm-size) or ask for fewer workers"
    ),
    Reason.WORKER_KILLED: (
        "a worker was killed, most likely for lack of memory; ask for fewer workers"
    ),
    Reason.TOO_MANY_FILES: "workers need more open files than are allowed; raise `ulimit -n`",
    Reason.NESTED_PROCESSES: "the dataset starts processes of its own, which workers may not",
    Reason.NO_MAIN_GUARD: (
        'workers import the program again here; put what it runs under `if __name__ == "__main__":`'
    ),
    Reason.UNPICKLABLE: "the dataset cannot be pickled, which workers started afresh here need",
    Reason.CHANGED_IN_PLACE: "a batch is changed in place after its copy{at}: copies wait again",
    Reason.UNPINNABLE: (
        "the loader's batches hold tensors that cannot be pinned (on the GPU, or sparse)"
    ),
    Reason.BATCHES_SHARE_MEMORY: "batches of {subject} share memory: none can be fetched ahead",
    Reason.COPY_FAILED: "the next batch of {subject} could not be copied: {error}",
    Reason.ITERABLE_IN_PROCESS: (
        "{subject} reads an IterableDataset in the program's process, where a sample fetched ahead"
        " is lost when the loop leaves an epoch early; give it workers"
    ),
    Reason.NO_USE_COUNT: "this version of torch does not count the users of a tensor's memory",
    Reason.SHARING_STRATEGY: "{subject}: processes share memory by {value}, which is not supported",
    Reason.START_METHOD: "{subject}: needs workers started by fork (these use {value})",
    Reason.COPY_TO_HOST: f"a non-blocking copy to the host{{at}} {_SYNCHRONIZES}",
    Reason.PINNED_REFILLED: f"pinned memory filled again for each copy{{at}} {_SYNCHRONIZES}",
    Reason.PINNED_IN_NUMPY: f"pinned memory shared with numpy{{at}} {_SYNCHRONIZES}",
    Reason.STREAM_MADE: f"the stream made{{at}} {_SYNCHRONIZES}",
    Reason.STREAM_USED: f"the stream used{{at}} {_SYNCHRONIZES}",
    Reason.DEVICE_ASKED: f"asking whether the device is done{{at}} {_SYNCHRONIZES}",
    Reason.OTHER_CUDA_LIBRARY: f"{{code}}, which uses the device on its own, {_SYNCHRONIZES}",
    Reason.SOURCE_UNREADABLE: "the source of .item(){at} cannot be read",
    Reason.VALUE_NEEDED_NOW: "the value of .item(){at} is needed at once",
    Reason.VALUE_SHARED: (
        "the value of .item(){at} goes into `{code}`, which other functions may read"
    ),
    Reason.VALUE_RETURNED: (
        "the value of .item(){at} is returned at line {value}, where a plain number is needed"
    ),
    Reason.VALUE_HANDED_ON: (
        "the value of .item(){at} is handed on at line {value}, where a plain number is needed"
    ),
    Reason.VALUE_IN_CLASS: "the value of .item(){at} becomes `{code}` of a class",
    Reason.NOT_ON_CUDA: "{object} is not on a CUDA device",
    Reason.NO_TF32: "{object} has no TF32",
    Reason.NO_CONVOLUTIONS: "{object} has no 2d or 3d convolutions",
    Reason.NO_CUDA_CONVOLUTIONS: "{object} has no convolutions on a CUDA device",
    Reason.TURNED_OFF: "the program turns it off{at}",
    Reason.DETERMINISTIC: "the program asks for deterministic results{at}",
    Reason.MANY_SHAPES: (
        "inputs come in more than {value} shapes, and each new one is benchmarked again: this may"
        " be slower than without"
    ),
    Reason.OWN_AUTOCAST: f"{_MIXED}: autocast{{at}}",
    Reason.OWN_GRAD_SCALER: f"{_MIXED}: a GradScaler{{at}}",
    Reason.HALF_ALREADY: "{object}, called{at}, is already in {value}",
    Reason.NO_FLOAT32: "{object} has no parameters in float32",
    Reason.RECURRENT_ON_CPU: "{object} has recurrent layers, which the CPU lacks in fp16: use bf16",
    Reason.FP16_IN_GRAPH: "a CUDA graph cannot leave out steps, as fp16 must",
    Reason.CLOSURE_OPTIMIZER: (
        "{object} computes gradients inside its step{at}: overflows cannot be left out there; use"
        " amp=bf16"
    ),
    Reason.OVERFLOWS: "gradients overflow fp16 in {value} steps in a row; use amp=bf16",
    Reason.NOT_IN_HALF: (
        "`{code}` cannot work on values in half precision; give it .float(), or leave amp out"
    ),
    Reason.WEIGHTS_ASKED_FOR: "attention weights are asked for{at}",
    Reason.WEIGHTS_RETURNED: "{object} returns attention weights ({code})",
    Reason.WEIGHTS_MAY_BE_USED: (
        "the weights that MultiheadAttention{at} returns may be used; pass need_weights=False if"
        " they are not"
    ),
    Reason.NO_OTHER_ATTENTION: "{object} offers no attention but its own",
    Reason.WRITTEN_BY_HAND: (
        "{object} writes its attention out{at}; use"
        " torch.nn.functional.scaled_dot_product_attention there"
    ),
    Reason.SECOND_DERIVATIVES: (
        "`{code}` needs second derivatives, which fused attention does not have"
    ),
    Reason.NEEDS_CONTIGUOUS: f"`{{code}}`{{at}} {_CONTIGUOUS}{{left}}",
    Reason.TORCHSCRIPT: "{subject}: it is a TorchScript module",
    Reason.DATA_PARALLEL: (
        "{subject}: nn.DataParallel copies models at every call: use DistributedDataParallel"
    ),
    Reason.PROGRAM_COMPILES: "{subject}: the program compiles it itself",
    Reason.NO_CPP_COMPILER: "{subject}: no C++ compiler: install g++ or clang++, or set CXX",
    Reason.NO_TRITON: (
        "{subject}: no Triton for this GPU: pip install triton (it needs compute capability 7.0)"
    ),
    Reason.NO_C_COMPILER: (
        "{subject}: no C compiler, which Triton needs: install gcc or clang, or set CC"
    ),
    Reason.GRAPH_MEMORY_REUSED: (
        "the CUDA graphs of this mode reuse the memory of gradients or outputs that are still"
        " needed, as when gradients are accumulated: use compile=default"
    ),
    Reason.COMPILER_FAILED: "torch.compile failed: {error}",
    Reason.NOT_ON_GPU: "{subject}: it or its inputs are not on the GPU",
    Reason.SEVERAL_GPUS: "{subject}: it is spread over several GPUs",
    Reason.SEVERAL_PROCESSES: "{subject}: it trains in several processes, which talk in backward",
    Reason.CHECKPOINTED: "{subject}: gradient checkpointing cannot be captured",
    Reason.HOOKS: "{subject}: {code} has hooks, which a graph would not call",
    Reason.PARAMETER_HOOKS: "{subject}: its parameters have hooks, which a graph would not call",
    Reason.RECURRENT: "{subject}: {code} is recurrent and keeps state that a graph cannot restore",
    Reason.BUFFER_GRADIENTS: "{subject}: it has buffers that require gradients",
    Reason.STRANGE_INPUT: "{subject}: it is called with a {code}, which a graph cannot take",
    Reason.STRANGE_OUTPUT: "{subject}: it returns a {code}, which a graph cannot",
    Reason.NO_GRADIENT: "{subject}: no gradient comes back through its outputs",
    Reason.CHANGES_ATTRIBUTE: "{subject}: its forward changes {code}, which a graph would not",
    Reason.KEEPS_CHANGING: (
        "{subject}: the program keeps changing {code}, which a graph would freeze"
    ),
    Reason.HOST_RANDOM: (
        "{subject}: its forward draws random numbers on the host, which a graph would repeat"
    ),
    Reason.WAITS_FOR_GPU: (
        "{subject}: its forward or backward waits for the GPU{raised}, which a graph cannot"
    ),
    Reason.CAPTURE_FAILED: "{subject}: it could not be captured: {error}{raised}",
    Reason.CAPTURE_LEFT_OPEN: "a capture that failed could not be undone",
    Reason.HIDDEN_PARAMETERS: (
        "{subject}: its forward uses parameters that it keeps outside of its modules"
    ),
    Reason.SINGLE_GRADIENTS: (
        "{subject}: gradients of single parameters are asked for, which CUDA graphs cannot give"
    ),
    Reason.BACKWARD_TWICE: (
        "a model's outputs were used in backward twice, or after the model had been called again"
    ),
    Reason.UNUSED_OUTPUT: "an output of the model got a gradient that got none in the first steps",
    Reason.GRAPH_DERIVATIVES: "gradients of gradients cannot be computed through a CUDA graph",
    Reason.NO_REPEATED_BLOCKS: "{subject}: no repeated blocks hold most of its layers",
    Reason.CHECKPOINTING_ALREADY: "{subject}: its gradient checkpointing is already on",
    Reason.RECOMPUTED_DIFFERENTLY: (
        "a block did something else when it was computed again in backward"
    ),
    Reason.STEP_NOT_CAPTURED: "the step of {object} is not captured",
    Reason.STEP_NEEDS_FUSED: (
        "the step of {object} counts on the CPU and is not captured: add fused_optimizer"
    ),
    Reason.STEP_CAPTURE_FAILED: "the step of {object} could not be captured: {error}",
    Reason.STEP_CHANGES: (
        "the step of {object} is not captured: its learning rate changes all the time, or gradients"
        " move in memory"
    ),
    Reason.NOT_TORCHS_STEP: "{subject}: its step is not one of torch's own optimizers",
    Reason.NO_SUCH_VERSION: "{subject}: torch has no {code} version of it",
    Reason.PROGRAM_SETS_FLAG: "{subject}: the program sets {code}={value} itself",
    Reason.DIFFERENTIABLE: "{subject}: differentiable=True rules out {code}",
    Reason.TORCH_CHOOSES: "{subject}: torch chooses foreach by itself here",
    Reason.TENSOR_LEARNING_RATE: "{subject}: foreach takes no learning rate that is a tensor",
    Reason.NOT_PLAIN_PARAMETER: "{subject}: it holds a {code}, not a plain parameter",
    Reason.NOT_FLOATING: "{subject}: it holds a parameter of {code}",
    Reason.NO_KERNEL: "{subject}: torch has no fused kernel of it for {value}",
    Reason.SPARSE_GRADIENTS: f"{{subject}}: {_NO_SPARSE}",
    Reason.OTHER_LAYOUT: "{subject}: a gradient is laid out in memory unlike its parameter",
    Reason.CLEARS_GRADIENTS: (
        "the program clears gradients in its own way, not by zero_grad{before}"
    ),
    Reason.SEVERAL_OPTIMIZERS: (
        "{object}{at}: there are several optimizers, whose gradients would mix"
    ),
    Reason.LBFGS: "{object}{at}: LBFGS computes the loss several times in a step",
    Reason.PROGRAM_SETS_VARIABLE: "the program sets {code} itself: add {value} to it there",
}
_BREAKS: Final = {
    Reason.OTHER_LAYOUT: "the fused kernel needs gradients laid out as their parameters are",
    Reason.NO_KERNEL: "a parameter of this optimizer cannot be updated by a fused kernel",
    Reason.SPARSE_GRADIENTS: _NO_SPARSE,
    Reason.SINGLE_GRADIENTS: (
        "gradients of single parameters were asked for, which CUDA graphs cannot give"
    ),
}
"""Where the program's end is told in other words than a refusal."""
_NAMED: Final = (Reason.OTHER, Reason.NEEDS_CONTIGUOUS)
"""Reasons that name the place themselves, if it is to be named."""


def applied_words(one: Applied) -> str:
    """What a fix took effect on."""
    fields: dict[str, Any] = {
        **_fields(one),
        "change": _loader_change(one),
        "size": size_words(one.after) if isinstance(one.after, int) else "",
        "all": one.total,
        "total": "" if one.total is None else f" of {one.total:,}",
        "detail": one.detail or "",
    }
    text = _APPLIED[one.target].format_map(fields)
    if one.of_torch_nn:
        text += " (a class of torch.nn)"
    return text + (_REMARKS.get(one.target, "") if one.remark else "")


def refusal_words(one: NotApplied) -> str:
    """Why a fix does not apply to something."""
    fields: dict[str, Any] = {
        **_fields(one),
        "subject": _subject(one),
        "trait": "" if one.trait is None else trait_words(one.trait),
        "varies": "" if one.varies is None else variation_words(one.varies),
        "raised": f" (at {one.raised})" if one.raised else "",
        "before": f" (before {one.place})" if one.place else "",
        "left": f": {one.object} left unchanged" if one.object else "",
    }
    return _REASONS[one.reason].format_map(fields)


def break_words(one: NotApplied) -> str:
    """Why the program could not go on, with the line that failed."""
    text = _BREAKS.get(one.reason) or refusal_words(one)
    told = one.place is None or one.reason in _NAMED
    return text if told else f"{text} (at {one.place})"


def reason_words(one: FixOutcome) -> list[str]:
    """Why a fix did not apply here and there, and last why it broke the program."""
    refused = [refusal_words(refused) for refused in one.not_applied]
    return refused if one.broke is None else [*refused, break_words(one.broke)]


def trait_words(one: Trait) -> str:
    """What was seen in code that makes samples."""
    inside = f" ({one.code!r})" if one.code else f" in {one.file}" if one.file else ""
    return _TRAITS[one.what].format(
        code=one.code,
        at=_at(one.place),
        in_code=inside,
        library=_OPEN.get(one.code or "", "an open file"),
        because="" if one.because is None else trait_words(one.because),
    )


def outcome_json(one: FixOutcome) -> dict[str, object]:
    """As documents and journals keep it: the records, and sentences made of them."""
    return {
        "name": one.name,
        "value": one.value,
        "state": str(one.state),
        "kind": None if one.kind is None else str(one.kind),
        "where": [applied_words(applied) for applied in one.applied],
        "reasons": reason_words(one),
        "applied": [applied.to_json() for applied in one.applied],
        "not_applied": [refused.to_json() for refused in one.not_applied],
        "broke": None if one.broke is None else one.broke.to_json(),
    }


def size_words(count: float) -> str:
    """Bytes in a person's unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def variation_words(one: Variation) -> str:
    """What batches have otherwise, and why."""
    if one.data == DataChange.ORDER or one.because is None:
        return _DATA[one.data]
    reason = trait_words(one.because)
    if one.because.what in _SAMPLER:
        return reason
    text = f"{'' if one.certain else 'perhaps '}{_DATA[one.data]}: {reason}"
    return f"{text} runs on one thread in a worker" if one.data == DataChange.ROUNDING else text


def _loader_change(one: Applied) -> str:
    what = f" ({variation_words(one.varies)})" if one.varies else ""
    if one.before is None:
        return what
    unit = " workers" if one.target == Target.LOADER_WORKERS else ""
    return f": {one.before} → {one.after}{unit}{what}"


def _fields(one: Applied | NotApplied) -> dict[str, Any]:
    own = {name: getattr(one, name) for name in one.__dataclass_fields__}
    return {**own, "at": _at(one.place)}


def _at(place: SourceLine | None) -> str:
    return f" at {place}" if place else ""


def _subject(one: NotApplied) -> str:
    if one.target == Target.LOADER:
        return f"the DataLoader at {one.place}" if one.place else "a DataLoader"
    if one.place is None:
        return str(one.object)
    called = "made" if one.target == Target.OPTIMIZER else ", called"
    return f"{one.object}{' ' if called == 'made' else ''}{called} at {one.place}"
