"""What torch.compile needs on a machine, and whether a model can be given to it."""

import os
import shutil
from typing import Any


def missing_tools(kind: str) -> str | None:
    """Why code for a kind of device cannot be generated here; None if it can."""
    if kind == "cuda":
        return _missing_for_cuda()
    if kind == "cpu":
        return _missing_for_cpu()
    return None


OF_TORCH = "a class of torch.nn"


def compile_in_place(module: Any, **options: Any) -> bool:
    """As `module.compile`, which compiles nothing of a class of torch.nn, such as Sequential:
    Dynamo leaves the code of torch.nn alone unless a function of another file calls it. Whether
    the class is the program's or a library's own."""
    import torch
    from torch._dynamo.external_utils import wrap_inline
    from torch._dynamo.trace_rules import check

    if not check(module.forward):
        module.compile(**options)
        return True
    module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl), **options)
    return False


def unfit_model(module: Any) -> str | None:
    """Why a model is not to be compiled; None if it is."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return "it is a TorchScript module"
    if isinstance(module, torch.nn.DataParallel):
        return "nn.DataParallel copies models at every call: use DistributedDataParallel"
    return "the program compiles it itself" if is_compiled(module) else None


def is_compiled(module: Any) -> bool:
    """Whether torch.compile has been used on a model or a part of it. Does not import Dynamo."""
    return any(
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
        for part in module.modules()
    )


def _missing_for_cpu() -> str | None:
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError, OSError):
        return "no C++ compiler: install g++ or clang++, or set CXX"
    return None


def _missing_for_cuda() -> str | None:
    from torch.utils._triton import has_triton

    if not has_triton():
        return "no Triton for this GPU: pip install triton (it needs compute capability 7.0)"
    if not any(map(shutil.which, (os.environ.get("CC") or "gcc", "gcc", "clang"))):
        return "no C compiler, which Triton needs: install gcc or clang, or set CC"
    return None
