"""A few steps of training with every kind of event in them: short recordings lack most."""

from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]
_STEP_US = 400
_BIG, _IMAGE = [64, 64], [8, 16, 14, 14]
_LAYERS: tuple[tuple[str, list[Any], list[str]], ...] = (
    ("aten::addmm", [[64], _BIG, _BIG], []),
    ("aten::relu", [_BIG], []),
    ("aten::bmm", [[8, 64, 64], [8, 64, 64]], []),
    (
        "aten::convolution",
        [_IMAGE, [32, 16, 3, 3], [], [], [], [], [], [], []],
        ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    ),
    ("aten::_scaled_dot_product_flash_attention", [[2, 8, 64, 16]] * 3, ["", "", "", "0.", "True"]),
    ("aten::native_layer_norm", [_BIG, [], [64], [64], []], ["", "[64]", "", "", "1e-05"]),
    ("aten::embedding", [[100, 64], [8, 16]], ["", "", "-1"]),
    ("aten::add_", [_BIG, _BIG, []], ["", "", "1"]),
)
"""Operators, the dimensions of their inputs, and values where they are no tensors."""
_NCCL = {
    "Collective name": "allreduce",
    "In msg nelems": 4096,
    "Out msg nelems": 4096,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Ranks": "[0, 1]",
    "Process Group Name": "0",
}


def training(steps: int, device: bool, ranks: int = 1) -> dict[str, Any]:
    """Steps of a loader, a copy, two layers, an item(), a backward and an optimizer."""
    about = {"name": "NVIDIA H200", "totalGlobalMem": 1 << 37, "numSms": 132, "warpSize": 32}
    document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": []}
    if device:
        document["deviceProperties"] = [{"id": 0, "computeMajor": 9, "computeMinor": 0, **about}]
    if ranks > 1:
        document["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": ranks}
    events = document["traceEvents"]
    for number, name in ((1, "main"), (2, "pt_autograd_0"), (3, "pin")):
        about = {"name": f"thread 1 ({name})"}
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": about})
    for step in range(steps):
        for event in _step(step, ranks):
            if device or event["cat"] not in _OF_DEVICES:
                events.append(event)
    return document


_OF_DEVICES = ("kernel", "gpu_memcpy", "cuda_runtime", "cuda_sync", "ac2g", "gpu_user_annotation")


def _host(at: float, length: float, name: str, category: str = "cpu_op", **args: Any) -> Event:
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": args.pop("tid", 1)}
    return {**event, "ts": at, "dur": length, "args": args}


def _work(
    number: int, at: float, length: float, name: str, category: str = "kernel", **args: Any
) -> Iterator[Event]:
    """A call, its work and the arrow between."""
    call = {"kernel": "cudaLaunchKernel"}.get(category, "cudaMemcpyAsync")
    thread = args.pop("tid", 1)
    yield _host(at, 3, call, "cuda_runtime", correlation=number, tid=thread)
    place = {"device": 0, "stream": args.pop("stream", 7), "correlation": number}
    shape = {"grid": [64, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 50}
    found = {"External id": number, **place, **(shape if category == "kernel" else {}), **args}
    work = _host(at + 20, length, name, category, **found)
    yield {**work, "pid": 0, "tid": place["stream"]}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    yield {**arrow, "ph": "s", "pid": 1, "tid": thread, "ts": at}
    yield {**arrow, "ph": "f", "bp": "e", "pid": 0, "tid": place["stream"], "ts": at + 20}


def _step(step: int, ranks: int) -> Iterator[Event]:
    at, number = 1000.0 + _STEP_US * step, 100 * step
    yield _host(at, _STEP_US - 1, f"ProfilerStep#{step}", "user_annotation")
    yield _host(at, _STEP_US - 1, f"ProfilerStep#{step}", "gpu_user_annotation")
    yield _host(at, _STEP_US - 2, "train.py(3): step", "python_function", **{"Python id": step})
    yield _host(at + 1, 20, "enumerate(DataLoader)#_next", "user_annotation")
    yield _host(at + 22, 12, "aten::copy_", **{"Input Dims": [[64, 64], [64, 64]]})
    copied = "Memcpy HtoD (Pageable -> Device)"
    yield from _work(number, at + 24, 8, copied, "gpu_memcpy", bytes=16384)
    for layer in range(2):
        name, dims, values = _LAYERS[(2 * step + layer) % len(_LAYERS)]
        inside, number = at + 40 + 40 * layer, number + 1
        types = [("c10::BFloat16" if step % 3 else "float") if one else "Scalar" for one in dims]
        args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
        yield _host(inside, 30, f"nn.Module: Layer_{layer}", "python_function")
        yield _host(inside + 1, 20, name, **args, **{"External id": number})
        yield from _work(number, inside + 3, 12, f"void {name[6:]}_kernel<float>(int)")
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": 4096}
    moved = _host(
        at + 45, 0, "[memory]", "cpu_instant_event", **memory, **{"Total Allocated": 8192}
    )
    yield {**moved, "ph": "i"}
    yield _host(at + 125, 40, "aten::item")
    yield _host(at + 126, 38, "cudaStreamSynchronize", "cuda_runtime", correlation=number + 1)
    yield _host(at + 126, 38, "Stream Sync", "cuda_sync", stream=7, device=0)
    for layer, name in enumerate(("ReluBackward0", "MmBackward0")):
        inside, number = at + 180 + 40 * layer, number + 2
        outer = f"autograd::engine::evaluate_function: {name}"
        yield _host(inside, 30, outer, tid=2, **{"Sequence number": layer, "Fwd thread id": 1})
        yield from _work(number, inside + 3, 12, f"void {name}_kernel<float>(int)", tid=2)
    if ranks > 1:
        reduced = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        yield _host(at + 270, 20, "nccl:all_reduce", **_NCCL)
        yield from _work(number + 1, at + 272, 30, reduced, stream=20, **_NCCL)
    yield _host(at + 300, 60, "Optimizer.step#SGD.step", "user_annotation")
    for one in range(3):
        yield from _work(number + 2 + one, at + 305 + 15 * one, 4, "multi_tensor_apply_kernel<SGD>")
