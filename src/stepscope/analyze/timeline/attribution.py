"""Where device work came from (operator, phase, module, source line) and its category."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analyze.timeline.names import (
    CopyDirection,
    communication_kernels,
    copies_towards,
    names_match,
    starts_with,
    user_frames,
)
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceKind,
    HostKind,
    Timeline,
    map_rows,
    once_per_timeline,
)

DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(STEP_PHASES))

AUTOGRAD_NODE: Final = "autograd::engine::evaluate_function"
# Names that only wrap others: never the operator a kernel is charged to.
_WRAPPERS: Final = (
    AUTOGRAD_NODE, "ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "CompiledFunction",
    "Torch-Compiled Region", "## Call CompiledFxGraph", "TorchDynamo", "nccl:", "DataParallel",
    "DistributedDataParallel.forward",
)  # fmt: skip
_OPTIMIZES: Final = re.compile(
    r"Optimizer\.(step|zero_grad)#|aten::_(foreach|fused_(adam|sgd|adagrad))"
    r"|torch/optim/\w+\.py\(\d+\): step$"
)
_MODULE: Final = "nn.Module: "
_DEEPEST_MODULE: Final = 64


@dataclass(frozen=True, slots=True)
class Attribution:
    """One entry per device event; NOTHING where it is not known."""

    operator: Column  # int32, innermost operator, as an index into the host events
    top: Column  # int32, outermost operator
    phase: Column  # uint8, into STEP_PHASES
    module: Column  # int32, into `modules`
    line: Column  # int32, into Timeline.names: "file(line): function" of the user's own frame
    forward: Column  # int32, host event: of backward work, the forward operator it belongs to
    recomputed: Column  # bool, forward work done again inside backward (activation checkpointing)
    modules: list[str]  # paths of nested modules, outermost first, joined by dots


def nearest(parent: Column, marked: Column) -> Column:
    """For each event itself if marked, else its nearest marked ancestor, else NOTHING."""
    size = len(parent)
    # An extra entry at the end, which index -1 reaches, stands for "nothing above".
    above = np.full(size + 1, NOTHING, np.int32)
    if not marked.any():
        return above
    above[:size] = np.where(marked, np.arange(size, dtype=np.int32), parent)
    while True:
        higher = above[above]
        if np.array_equal(higher, above):
            return above
        above = higher


@once_per_timeline
def is_operator(timeline: Timeline) -> Column:
    """For each host event whether it is an operator proper, not something that wraps others."""
    host = timeline.host
    proper: Column = (host.kind == HostKind.OPERATOR) & ~starts_with(timeline, *_WRAPPERS)
    return proper


@once_per_timeline
def attribute(timeline: Timeline) -> Attribution:
    """Follow each device event's launch up to what caused it."""
    host, device = timeline.host, timeline.device
    # What each device event came from: its launch, else the operator it names.
    lost = np.flatnonzero((device.launch == NOTHING) & (device.external != NOTHING))
    known = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.external != NOTHING))
    origin = device.launch.copy()
    origin[lost] = _last_with(host.external[known], known, device.external[lost])
    operators = is_operator(timeline)
    innermost = nearest(host.parent, operators)
    nodes = nearest(host.parent, starts_with(timeline, AUTOGRAD_NODE))
    again = _starts_recomputation(timeline, operators, innermost, nodes)
    outermost = again | (operators & (innermost[host.parent] == NOTHING))
    node = nodes[origin]
    # Operators carry the number the next autograd node will get, so of several with it the last
    # made the node. Those run inside backward (recomputation) count on their own thread: left out.
    sequence = host.sequence
    made = np.flatnonzero(operators & (nodes[:-1] == NOTHING) & (sequence != NOTHING))
    wanted = np.append(sequence, NOTHING)[node]
    forward = _last_with(sequence[made], made, wanted)
    forward = np.where(wanted == NOTHING, np.int32(NOTHING), forward)
    module, modules = _module_paths(timeline, origin, node, forward)
    frame = _seen_from(nearest(host.parent, user_frames(timeline)), origin, node, forward)
    operator = innermost[origin]
    top = nearest(host.parent, outermost)[origin]
    return Attribution(
        operator=operator,
        top=top,
        phase=_phases(timeline, origin, node, operator, module),
        module=module,
        line=timeline.host_names(frame),
        forward=forward,
        recomputed=np.append(again, False)[top],
        modules=modules,
    )


def _last_with(keys: Column, values: Column, wanted: Column) -> Column:
    """For each wanted key the value of its last occurrence, NOTHING where it does not occur."""
    if not len(keys):
        return np.full(len(wanted), NOTHING, np.int32)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    found = (at >= 0) & (keys[order][at] == wanted)
    return np.where(found, values[order][at], NOTHING).astype(np.int32)


def _starts_recomputation(
    timeline: Timeline, operators: Column, innermost: Column, nodes: Column
) -> Column:
    """For each host event whether it is called by an autograd node, yet records a graph itself.

    Backward runs without recording; what it computes again is recorded, and so has a number.
    """
    host = timeline.host
    sequence = np.append(host.sequence, NOTHING)
    inside: Column = operators & (nodes[:-1] != NOTHING) & (host.sequence != NOTHING)
    candidates = np.flatnonzero(inside)
    caller, node = innermost[host.parent[candidates]], sequence[nodes[candidates]]
    by_node = (caller != NOTHING) & (sequence[caller] == node) & (sequence[candidates] != node)
    inside[candidates] = by_node
    return inside


def _seen_from(above: Column, origin: Column, node: Column, forward: Column) -> Column:
    """What `above` says of each event: from inside backward if there, else of its forward."""
    own = above[origin]
    return np.where(own > node, own, np.where(node == NOTHING, own, above[forward]))


def _module_paths(
    timeline: Timeline, origin: Column, node: Column, forward: Column
) -> tuple[Column, list[str]]:
    host = timeline.host
    modules = starts_with(timeline, _MODULE) & (host.kind == HostKind.PYTHON)
    above = nearest(host.parent, modules)
    parent = np.append(host.parent, np.int32(NOTHING))
    innermost, which = np.unique(_seen_from(above, origin, node, forward), return_inverse=True)
    chains = [innermost]
    while (chains[-1] != NOTHING).any() and len(chains) < _DEEPEST_MODULE:
        chains.append(above[parent[chains[-1]]])
    levels = timeline.host_names(np.stack(chains))
    distinct, path = np.unique(levels, axis=1, return_inverse=True)
    texts = [
        ".".join(timeline.names[n].removeprefix(_MODULE) for n in chain[::-1] if n != NOTHING)
        for chain in distinct.T.tolist()
    ]
    # Recomputation inside backward starts in the middle of the model: the path that ends so.
    wholes: dict[str, set[str]] = {text: set() for text in texts}
    for text in texts:
        for at in (n for n, letter in enumerate(text) if letter == "."):
            if (end := text[at + 1 :]) in wholes:
                wholes[end].add(text)
    paths = {t: next(iter(wholes[t])) if len(wholes[t]) == 1 else t for t in texts}
    used = sorted(set(filter(None, paths.values())))
    number = {text: n for n, text in enumerate(used)}
    numbers = np.array([number.get(paths[text], NOTHING) for text in texts], np.int32)
    return numbers[path.ravel()][which.ravel()], used


def _phases(
    timeline: Timeline, origin: Column, node: Column, operator: Column, module: Column
) -> Column:
    host, threads = timeline.host, timeline.threads
    optimizes = names_match(timeline, host.name, _OPTIMIZES.match)
    loads = starts_with(timeline, "enumerate(DataLoader)")
    roots = (host.kind == HostKind.OPERATOR) & (host.parent == NOTHING)
    is_node = starts_with(timeline, AUTOGRAD_NODE)
    nodes = np.bincount(host.thread[roots & is_node], minlength=len(threads))
    others = np.bincount(host.thread[roots & ~is_node], minlength=len(threads))
    only_backward = (nodes > others) | np.array(["pt_autograd" in t.name for t in threads], bool)
    on_autograd = np.append(only_backward[host.thread], False)[origin]
    phases = {  # the first that applies
        H2D: copies_towards(timeline, CopyDirection.HTOD),
        OPTIMIZER: nearest(host.parent, optimizes)[origin] != NOTHING,
        BACKWARD: (node != NOTHING) | on_autograd,
        DATA_WAIT: nearest(host.parent, loads)[origin] != NOTHING,
        OTHER: copies_towards(timeline, CopyDirection.DTOH),
        FORWARD: (operator != NOTHING) | (module != NOTHING),
    }
    return np.select([*phases.values()], [*phases], OTHER).astype(np.uint8)


CATEGORIES: Final = (
    "convolution", "matmul", "attention", "recurrent", "normalisation", "pointwise", "reduction",
    "softmax", "loss", "pooling", "optimizer", "embedding/index", "copy", "layout change",
    "random", "sort/scan", "communication", "compiled", "other",
)  # fmt: skip

_Rules = tuple[tuple[str, re.Pattern[str]], ...]


def _rules(*rules: tuple[str, str]) -> _Rules:
    return tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in rules)


# Kernels that are the same thing whichever operator launched them.
_ANY_OPERATOR: Final = _rules(
    ("copy", r"^mem(cpy|set)|reshape_and_cache"),
    ("layout change", r"nchw_?to_?nhwc|nhwc_?to_?nchw|nchw2|nhwc2|2nchw|2nhwc|batched_transpose"
     r"|tensortransform|transpose_(nchw|cnhw|nhwc)|transpose_readwrite|cublas_?transpose"),
    ("communication", r"nccl|rccl|nvshmem|mscclpp|cross_device_reduce|all_?reduce_kernel"),
)  # fmt: skip

# Operators whose every kernel belongs to them, helpers included. Order matters: first one wins.
_OPERATORS: Final = _rules(
    ("loss", r"nll_?loss|cross_entropy|mse_?loss|l1_?loss|huber|bce_|binary_cross|kl_div|ctc_?loss"
     r"|(margin|cosine_embedding)_?loss"),
    ("attention", r"attention|flash_attn|flash::|sdpa|xformers|mha_"),
    ("recurrent", r"_rnn|lstm|gru_cell|_gru|miopen_rnn"),
    ("convolution", r"conv(olution)?([123]d|_|$)|conv_transpose|_conv|convolution"),
    ("normalisation", r"(batch|layer|group|instance|rms|weight)_?norm|batchnorm|layernorm|renorm"),
    ("softmax", r"softmax"),
    ("pooling", r"pool|upsample|interpolate|grid_sampl"),
    ("optimizer", r"aten::_(foreach|fused_(adam|sgd|adagrad))|_amp_|fusedadam|multi_tensor"),
    ("random", r"dropout|bernoulli|normal_$|uniform_$|::rand|multinomial|exponential_|random_"),
    ("sort/scan", r"sort|topk|cum(sum|prod|max|min)|unique|searchsorted|bucketize|kthvalue|median"),
    ("embedding/index", r"embedding|::_?index|gather|scatter|::take|masked_select|nonzero|one_hot"
     r"|repeat_interleave"),
    ("matmul", r"::(_?(add)?(mm|bmm|mv|bmv|r)_?|baddbmm_?|addbmm|matmul|linear|dot|vdot|einsum"
     r"|_scaled_mm|_int_mm|_grouped_mm|_addmm_activation|ger|outer)$|gemm|matmul"),
    ("reduction", r"::(sum|mean|max|min|amax|amin|aminmax|var|std|var_mean|std_mean|norm"
     r"|linalg_vector_norm|prod|all|any|argmax|argmin|logsumexp|count_nonzero|nansum)$"),
    ("copy", r"::(copy_|_to_copy|clone|cat|stack|contiguous|repeat|constant_pad_nd|as_strided_)$"),
)  # fmt: skip

# What the name of a kernel gives away. Order matters: first one wins.
_KERNELS: Final = _rules(
    ("attention", r"attention|flash|fmha|sdpa|mha_|attn|mla_|reduce_segments|softmax_lse"),
    ("optimizer", r"multi_tensor_apply|fusedadam|fusedsgd|adam(?!ant)|\blamb_"),
    ("recurrent", r"lstm|gru_|rnn_|_rnn|persist_kernel|elemwise(lstm|gru)"),
    ("normalisation", r"(batch|layer|group|instance|rms)_?norm|batchnorm|bn_(fw|bw|inf)|miopenbatch"
     r"|gammabetabackward|computegradientfused|rowwisemoments|cunn_.{0,200}norm|bnormkernel"),
    ("loss", r"nll_?loss|cross_?entropy|mse_(kernel|backward)|smooth_l1|bce|ctc_loss|kl_div"),
    ("softmax", r"softmax"),
    ("convolution", r"conv(?!ert)|fprop|dgrad|wgrad|winograd|igemm_|scudnn|implicit_gemm|im2col"
     r"|col2im|im2d2col|bwd_weight|bwd_data|cask.{0,200}offsets|fft2d|miopensp3|gridwise_gen"
     r"|h?scalepackedtensor|naive_conv|subtensorop"),
    ("matmul", r"gemm|gemv|cijk_|nvjet|matmul|cutlass|splitk|_mm_|_mm$|_bmm|addmm|xmma"
     r"|cublas|dot_kernel|epilogue::impl|scal_kernel|s884|s1688|s16816|h884|wgmma|moe_kernel"
     r"|fused_moe"),
    ("pooling", r"pool|upsample|interpolat|grid_sampl"),
    ("sort/scan", r"sort|topk|scan(?!nable)|unique|merge_?path|searchsorted|histogram|cumsum"
     r"|routing|compact(init|ion)|select_?if|partition|bitonic"),
    ("random", r"philox|distribution_|dropout|curand|random|bernoulli|normal_kernel"),
    ("pointwise", r"rotary|rope_|silu_and_mul|act_and_mul|gelu"),
    ("embedding/index", r"embedding|gather|scatter|index_?(select|put|copy|fill|add|kernel)"
     r"|indexing|indexselect|compute_grad_weight|masked_(select|scatter)|nonzero"
     r"|index_elementwise|krn_partial|partial_segment|take_put"),
    ("layout change", r"transpose|permute|nchw|nhwc"),
    ("copy", r"catarray|direct_copy|copy_kernel|_to_copy|memcpy|memset|copy_device|cat_kernel"
     r"|^copy"),
    ("reduction", r"reduce|reduction|_sum|sum_|norm_kernel|argm(ax|in)|welford|moments"),
    ("pointwise", r"elementwise|pointwise|fill|loop_.{0,200}fusion|activation|triu_tril|arange|relu"
     r"|sigmoid|tanh|clamp|^(wrapped_|loop_)?(add|mul|sub|div|multiply|select|compare|convert)"
     r"|convert_|cast"),
)  # fmt: skip

_TRITON: Final = re.compile(r"triton_(poi|red|per|tem|for|spl)_fused_(.*)", re.IGNORECASE)
_TRITON_KINDS: Final = {
    "poi": "pointwise", "red": "reduction", "per": "reduction", "for": "pointwise",
    "spl": "sort/scan", "tem": "matmul",
}  # fmt: skip
# Parts of a fused kernel's name that decide what it is, whatever is fused to them.
_TRITON_PARTS: Final = _rules(
    ("attention", r"attention"),
    ("convolution", r"convolution"),
    ("matmul", r"(^|_)(add|b)?mm(_|$)|matmul"),
    ("loss", r"nll_loss|cross_entropy|mse_loss"),
    ("softmax", r"softmax"),
    ("normalisation", r"_norm|layer_norm|rsqrt"),
    ("pooling", r"pool"),
    ("embedding/index", r"embedding|index|gather|scatter"),
    ("random", r"dropout|rand|bernoulli"),
)
_TRITON_COPIES: Final = re.compile(r"(_|to_copy|clone|transpose|view|permute|\d)*", re.IGNORECASE)


def categorise(name: str, operator: str = "") -> str:
    """One of CATEGORIES for a kernel, copy or memset; `operator` is "" where it is not known."""
    if fused := _TRITON.match(name):
        kind, parts = fused[1].lower(), fused[2]
        # Only templates can hold a matrix product; the others name it where they finish its result.
        allowed = _TRITON_PARTS if kind == "tem" else _TRITON_PARTS[3:]
        if kind == "poi" and _TRITON_COPIES.fullmatch(parts) and re.search("[a-z]", parts):
            return "copy"
        if kind == "poi":
            allowed = tuple(rule for rule in allowed if rule[0] in ("embedding/index", "random"))
        return _first(allowed, parts) or _TRITON_KINDS[kind]
    found = _first(_ANY_OPERATOR, name) or (operator and _first(_OPERATORS, operator))
    found = found or _first(_KERNELS, name)
    return found or ("compiled" if name.startswith("triton_") else "other")


def _first(rules: _Rules, text: str) -> str | None:
    return next((category for category, pattern in rules if pattern.search(text)), None)


@once_per_timeline
def event_categories(timeline: Timeline) -> Column:
    """uint8 into CATEGORIES for each device event; worked out once per name and operator."""
    device, name_of = timeline.device, timeline.name_of
    categories = map_rows(
        [device.name, timeline.host_names(attribute(timeline).operator)],
        lambda kernel, operator: CATEGORIES.index(categorise(name_of(kernel), name_of(operator))),
        np.uint8,
    )
    categories[communication_kernels(timeline)] = CATEGORIES.index("communication")
    categories[device.kind != DeviceKind.KERNEL] = CATEGORIES.index("copy")
    return categories
