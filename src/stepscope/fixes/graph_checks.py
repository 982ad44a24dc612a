"""Why a model cannot be captured in a CUDA graph, as far as that shows before trying."""

from typing import Any

from stepscope.fixes.compile_tools import is_compiled

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def unfit_for_graph(module: Any, tensors: list[Any], kind: str) -> str | None:
    """The reason; None if it is worth trying. `kind`: the device that has graphs."""
    import torch

    parameters = list(module.parameters())
    devices = {tensor.device for tensor in (*parameters, *module.buffers(), *tensors)}
    if any(device.type != kind for device in devices):
        return "it or what it is called with is not on the GPU"
    if len(devices) > 1:
        return "it is spread over several GPUs"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "it trains in several processes, which talk to each other in backward"
    if is_compiled(module):
        return "the program compiles it: use mode='reduce-overhead' there"
    if getattr(module, "is_gradient_checkpointing", False):
        return "gradient checkpointing cannot be captured"
    return _hooked(module, parameters)


def _hooked(module: Any, parameters: list[Any]) -> str | None:
    import torch

    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            return "it is a TorchScript module"
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return f"{name or 'it'} has hooks, which a graph would not call"
        if isinstance(part, torch.nn.RNNBase):  # trying would move on cuDNN's state of dropout
            return f"{name or 'it'} is recurrent and keeps state that a graph cannot put back"
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        return "its parameters have hooks, which a graph would not call"
    if any(buffer.requires_grad for buffer in module.buffers()):
        return "it has buffers that require gradients"
    return None
