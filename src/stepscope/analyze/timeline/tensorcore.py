"""Whether a kernel runs on the matrix units: NVIDIA's tensor cores, AMD's matrix cores."""

import re
from typing import Final

import numpy as np

from stepscope.analyze.timeline.categories import CATEGORIES
from stepscope.record.timeline import Column, Timeline

MATRIX: Final = tuple(CATEGORIES.index(name) for name in ("convolution", "matmul", "attention"))
NO, YES, UNKNOWN = 0, 1, 2

# First what says that ordinary units do it: such names often also carry the words of the others.
_ORDINARY: Final = re.compile(
    r"ffma|simt|splitk_?reduce|reducesplitk|reduce_wgrad|gemv|dot_kernel|epilogue::impl"
    r"|scal_kernel|scalepackedtensor|subtensorop|offsetskernel|init_device_workspace"
    r"|winograd(?!.*884)|(volta|ampere|maxwell|pascal|turing|hopper)_[scz]gemm|_scudnn|::scudnn"
    r"|sgemm_largek|magma_[sdcz]gemm|implicit_convolve_sgemm|(dgrad|wgrad)\w*_engine<float"
    r"|dgrad2d_alg|wgrad2d|fft|cgemm|im2col|col2im|naive_conv|miopensp3|dot_do_o|convert_dq"
    r"|gemmk1_kernel|reduce_segments|finalize|elementwise",
    re.IGNORECASE,
)
_MATRIX_UNITS: Final = re.compile(
    r"s16816|s1688|s161616|h16816|h1688|i16816|i16832|i8816|[hs]884|[hid]mma|wgmma|gmma|wmma|mfma"
    r"|tensor_?op|tensor\d+x\d+|tf32|tfloat32|nvjet|_mi\d+x\d+x\d+|xdlops?|_xdl_|gtcx\d?|flash"
    r"|sm(90|100|120)_xmma|warpgroup|sdpa|fmha\w*_(f16|bf16)"
    r"|(bf16|fp16|f16|half|fp8|e4m3|mxfp4)\w*(gemm|matmul)"
    r"|(gemm|matmul)\w*(bf16|fp16|f16|fp8|e4m3|mxfp4)",
    re.IGNORECASE,
)


def on_tensor_cores(name: str, category: str) -> bool | None:
    """Whether the kernel multiplies on matrix units; None where its name does not tell."""
    if category not in ("convolution", "matmul", "attention", "recurrent", "compiled"):
        return False
    if _ORDINARY.search(name):
        return False
    if _MATRIX_UNITS.search(name):
        return True
    if name.startswith("Cijk_"):  # Tensile writes MI… into every kernel that uses matrix cores
        return False
    return None


def event_tensor_cores(timeline: Timeline, categories: Column) -> Column:
    """uint8 for each device event: NO, YES or UNKNOWN."""
    pairs = timeline.device.name.astype(np.int64) * len(CATEGORIES) + categories
    distinct, which = np.unique(pairs, return_inverse=True)
    found = np.empty(len(distinct), np.uint8)
    for n, pair in enumerate(distinct.tolist()):
        name, category = divmod(pair, len(CATEGORIES))
        says = on_tensor_cores(timeline.name_of(name), CATEGORIES[category])
        found[n] = UNKNOWN if says is None else int(says)
    units: Column = found[which.ravel()]
    return units
