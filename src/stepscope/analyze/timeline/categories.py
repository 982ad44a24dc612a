"""What kind of work a kernel does, from its name and the operator that launched it."""

import re
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution
from stepscope.analyze.timeline.communicates import communication_kernels
from stepscope.record.timeline import Column, DeviceKind, Timeline

CATEGORIES: Final = (
    "convolution", "matmul", "attention", "recurrent", "normalisation", "pointwise", "reduction",
    "softmax", "loss", "pooling", "optimizer", "embedding/index", "copy", "layout change",
    "random", "sort/scan", "communication", "compiled", "other",
)  # fmt: skip

_Rules = tuple[tuple[str, re.Pattern[str]], ...]


def _rules(*rules: tuple[str, str]) -> _Rules:
    return tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in rules)


# Kernels that are the same thing whichever operator launched them.
_WHATEVER_OPERATOR: Final = _rules(
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
     r"|gammabetabackward|computegradientfused|rowwisemoments|cunn_.*norm|bnormkernel"),
    ("loss", r"nll_?loss|cross_?entropy|mse_(kernel|backward)|smooth_l1|bce|ctc_loss|kl_div"),
    ("softmax", r"softmax"),
    ("convolution", r"conv(?!ert)|fprop|dgrad|wgrad|winograd|igemm_|scudnn|implicit_gemm|im2col"
     r"|col2im|im2d2col|bwd_weight|bwd_data|cask.*offsets|fft2d|miopensp3|gridwise_gen"
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
    ("pointwise", r"elementwise|pointwise|fill|loop_.*fusion|activation|triu_tril|arange|relu"
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
    fused = _TRITON.match(name)
    if fused:
        return _fused(fused[1].lower(), fused[2])
    found = _first(_WHATEVER_OPERATOR, name) or (operator and _first(_OPERATORS, operator))
    if not found:
        found = _first(_KERNELS, name)
    if not found and name.startswith("triton_"):
        found = "compiled"
    return found or "other"


def _fused(kind: str, parts: str) -> str:
    # Only templates can hold a matrix product; the others name it where they finish its result.
    allowed = _TRITON_PARTS if kind == "tem" else _TRITON_PARTS[3:]
    if kind == "poi" and _TRITON_COPIES.fullmatch(parts) and re.search("[a-z]", parts):
        return "copy"
    if kind == "poi":
        allowed = tuple(rule for rule in allowed if rule[0] in ("embedding/index", "random"))
    return _first(allowed, parts) or _TRITON_KINDS[kind]


def _first(rules: _Rules, text: str) -> str | None:
    return next((category for category, pattern in rules if pattern.search(text)), None)


def event_categories(timeline: Timeline, attribution: Attribution) -> Column:
    """uint8 into CATEGORIES for each device event; worked out once per name and operator."""
    device, host, names = timeline.device, timeline.host, timeline.names
    operator = np.append(host.name, np.int32(-1))[attribution.operator].astype(np.int64)
    pairs = device.name.astype(np.int64) * (len(names) + 1) + operator + 1
    distinct, which = np.unique(pairs, return_inverse=True)
    found = np.empty(len(distinct), np.uint8)
    for n, pair in enumerate(distinct.tolist()):
        kernel, launcher = divmod(pair, len(names) + 1)
        category = categorise(timeline.name_of(kernel), timeline.name_of(launcher - 1))
        found[n] = CATEGORIES.index(category)
    categories: Column = found[which.ravel()]
    categories[communication_kernels(timeline)] = CATEGORIES.index("communication")
    categories[device.kind != DeviceKind.KERNEL] = CATEGORIES.index("copy")
    return categories
