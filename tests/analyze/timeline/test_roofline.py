"""The roofline on real recordings: known models' FLOPs, ceilings, bounds and counters."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from recordings import recorded

from stepscope.analyze.timeline.attribution import Attribution, attribute
from stepscope.analyze.timeline.roofline.ceilings import Ceilings, ceilings_for, datasheet_ceilings
from stepscope.analyze.timeline.roofline.operator_work import (
    OperatorWork,
    list_facts,
    operator_work,
)
from stepscope.analyze.timeline.roofline.rates import (
    OperatorRate,
    Roofline,
    roofline_of,
    with_counters,
)
from stepscope.record.timeline import NOTHING, DeviceInfo, DeviceKind, Timeline

RESNET50, GPT = "resnet50_b64_h200", "gpt_b4x1024_bf16_h200"
STEPS = 6


@cache
def read(name: str) -> tuple[Timeline, Attribution, OperatorWork]:
    timeline = recorded(name)
    attribution = attribute(timeline)
    return timeline, attribution, operator_work(timeline, attribution)


def found(name: str, **options: Any) -> Roofline:
    timeline, attribution, work = read(name)
    given = {"ceilings": ceilings_for(timeline), "steps": STEPS, **options}
    return roofline_of(timeline, attribution, work, **given)


def row(rows: list[OperatorRate], name: str, dtype: str | None = None) -> OperatorRate:
    return next(r for r in rows if r.name == name and dtype in (None, r.dtype))


def gradients(timeline: Timeline) -> list[int]:
    """Elements of each gradient added up by autograd."""
    is_one = timeline.host.name == timeline.names.index("torch::autograd::AccumulateGrad")
    shapes = [timeline.shapes[s].dims for s in timeline.host.shapes[is_one].tolist() if s >= 0]
    return [math.prod(json.loads(dims)[0]) for dims in shapes]


def test_resnet50_does_8_2_gflop_an_image_forward_and_twice_that_backward() -> None:
    result = found(RESNET50)
    forward = row(result.kinds, "aten::cudnn_convolution").flops
    forward += row(result.kinds, "aten::addmm").flops
    assert forward / STEPS / 64 == pytest.approx(8.18e9, rel=0.002)
    # The first layer needs no gradient of its input.
    first = 2 * 64 * 112 * 112 * 64 * 3 * 49
    assert result.step.model_flops == 3 * forward / STEPS - first
    assert result.step.model_flops == pytest.approx(1.57e12, rel=0.02)
    assert result.step.matrix_known_share == 1
    assert result.step.recomputed_flops == 0


def test_a_decoder_does_6_flops_a_parameter_and_token_and_its_attention() -> None:
    parameters = sum(gradients(read(GPT)[0])) / STEPS
    embedding = 32000 * 1024  # looked up, not multiplied
    tokens = 4 * 1024
    attention = 12 * 3.5 * 2 * 2 * tokens * 1024 * 1024 / 2  # causal; backward is 2.5 times forward
    rule = 6 * (parameters - embedding) * tokens + attention
    assert found(GPT).step.model_flops == pytest.approx(rule, rel=0.01)


def test_each_product_is_counted_once_however_many_operators_are_around_it() -> None:
    names = {r.name for r in found(GPT).kinds}
    assert {"aten::mm", "aten::addmm", "aten::_cudnn_attention_forward"} <= names
    around = {"aten::linear", "aten::matmul", "aten::scaled_dot_product_attention",
              "aten::_scaled_dot_product_cudnn_attention", "aten::_to_copy"}  # fmt: skip
    assert not around & names
    convolutions = {"aten::conv2d", "aten::convolution", "aten::_convolution"}
    assert not convolutions & {r.name for r in found(RESNET50).kinds}


@pytest.mark.parametrize("name", [RESNET50, GPT, "resnet18_b32_h200"])
def test_all_of_the_devices_time_has_an_owner_with_known_cost(name: str) -> None:
    timeline, _, work = read(name)
    result = found(name)
    assert result.known_share == pytest.approx(1)
    assert result.unknown_ns == {}
    counted = int(timeline.device.duration[work.owner != NOTHING].sum())
    assert sum(r.time_ns for r in result.shapes) == counted
    assert sum(r.time_ns for r in result.kinds) == counted
    assert sum(r.calls for r in result.kinds) == len(np.unique(work.owner[work.owner != NOTHING]))


def test_rates_and_shares_follow_from_the_ceilings() -> None:
    ceilings = Ceilings({"fp32": 50e12, "tf32": 400e12}, 4e12, "measured")
    result = found(RESNET50, ceilings=ceilings)
    one = row(result.shapes, "aten::add_", "fp32")
    assert one.bytes is not None
    assert one.share == pytest.approx(one.bytes / 4e12 / (one.time_ns / 1e9))
    assert (one.ceiling, one.intensity) == ("memory", pytest.approx(1 / 12))
    conv = next(r for r in result.shapes if r.dtype == "tf32" and r.ceiling == "compute")
    assert conv.share == pytest.approx(conv.flops / 400e12 / (conv.time_ns / 1e9))
    whole = result.step
    least = sum(f / ceilings.flops_per_s[d] for d, f in whole.flops_by_dtype.items())
    assert whole.ceiling_share == pytest.approx(least * STEPS / (whole.wall_ns / 1e9))
    assert whole.mfu is not None
    assert whole.mfu < whole.ceiling_share


def test_fp32_convolutions_on_tensor_cores_are_held_against_tf32() -> None:
    kinds = found(RESNET50).kinds
    assert row(kinds, "aten::cudnn_convolution").dtype == "tf32"
    assert row(kinds, "aten::addmm").dtype == "fp32"
    assert row(kinds, "aten::cudnn_batch_norm").dtype == "fp32"


def test_no_row_does_more_than_the_device_can() -> None:
    for name in (RESNET50, GPT):
        for r in found(name).shapes:
            beyond_cache = r.bytes is not None and r.bytes / r.calls > 150e6
            if r.share is not None and (r.ceiling == "compute" or beyond_cache):
                assert r.share < 1, r


def test_work_the_device_waited_for_is_bound_by_its_launch() -> None:
    launch_bound = found("resnet18_b32_h200", steps=8)
    assert all(r.bound == "launch" for r in launch_bound.kinds[:5])
    assert row(found(RESNET50).kinds, "aten::cudnn_batch_norm_backward").bound == "memory"
    assert row(found(RESNET50).kinds, "aten::convolution_backward").bound == "compute"


def test_without_ceilings_there_are_flops_and_bytes_but_no_shares() -> None:
    result = found(RESNET50, ceilings=None)
    one = row(result.kinds, "aten::convolution_backward")
    assert one.flops > 0
    assert one.bytes
    assert (one.share, one.least_ns, one.ceiling) == (None, None, None)
    assert result.step.ceiling_share is None
    assert result.step.model_flops is not None


@pytest.mark.parametrize("name", ["v100_train_2ranks_rank1", "a100_nccl_rank0"])
def test_without_shapes_nothing_is_claimed(name: str) -> None:
    result = found(name)
    assert result.kinds == []
    assert result.known_share == 0
    assert result.step.model_flops is None
    assert result.step.mfu is None
    assert result.unknown_ns


def test_work_from_cuda_graphs_hides_the_steps_flops() -> None:
    result = found("vllm_decode_cuda_graphs", steps=1)
    assert result.step.matrix_known_share == pytest.approx(0.03, abs=0.01)
    assert result.step.model_flops is None
    assert row(result.kinds, "aten::mm").flops == 2 * 32 * 2880 * 201088


def test_recomputed_flops_are_no_model_flops() -> None:
    name = "mi300_resnet_checkpointing_stacks"
    _, attribution, _ = read(name)
    # The first of three steps has lost its launches.
    known = attribution.operator != NOTHING
    result = found(name, selected=known, steps=3)
    forward = result.step.model_flops - row(result.kinds, "aten::convolution_backward").flops / 3
    assert result.step.recomputed_flops == pytest.approx(0.9 * forward, rel=0.15)
    assert result.step.matrix_flops == pytest.approx(
        result.step.model_flops + result.step.recomputed_flops
    )


def test_a_selection_looks_only_at_its_own_events() -> None:
    timeline, _, _ = read(RESNET50)
    start = timeline.device.start
    half = start < np.median(start)
    part, whole = found(RESNET50, selected=half), found(RESNET50)
    assert sum(r.time_ns for r in part.shapes) < 0.6 * sum(r.time_ns for r in whole.shapes)
    assert part.step.wall_ns < whole.step.wall_ns


def test_lists_too_long_to_be_recorded_are_known_from_the_gradients() -> None:
    timeline, attribution, _ = read(GPT)
    steps = gradients(timeline)
    facts = list_facts(timeline, attribution)
    assert {fact.dtype for fact in facts.values()} == {"float"}
    (elements,) = {fact.elements for fact in facts.values()}
    layer = 12 * 1024**2 + (3 + 1 + 4 + 1 + 4) * 1024  # four projections and an MLP; biases, norms
    assert elements == sum(steps) // STEPS == 12 * layer + 2 * 32000 * 1024 + 32000
    # Half the blocks: it was not a list of all parameters.
    halved = [
        replace(g, grid=(g.grid[0] // 2, *g.grid[1:])) if g.grid else g for g in timeline.geometries
    ]
    changed = replace(timeline, geometries=halved)
    assert {f.elements for f in list_facts(changed, attribution).values()} == {None}


def test_host_copies_and_communication_are_not_held_against_memory() -> None:
    timeline, _, work = read("a100_nccl_rank0")
    talks = [n for n, name in enumerate(timeline.names) if name.startswith("nccl")]
    assert not work.on_device[np.isin(timeline.device.name, talks)].any()
    timeline, _, work = read(RESNET50)
    crossing = [n for n, name in enumerate(timeline.names) if name.startswith("Memcpy HtoD")]
    assert (work.owner[np.isin(timeline.device.name, crossing)] == NOTHING).all()


@dataclass
class Counted:
    dram_bytes: float | None
    flops: float | None


def test_counters_replace_the_model_and_keep_it_beside() -> None:
    timeline, attribution, work = read(GPT)
    result = found(GPT)
    model = next(r for r in result.shapes if r.name == "aten::mm" and r.kernels == r.calls)
    kind = next(
        n for n, c in enumerate(work.kinds) if (c.name, c.shape) == ("aten::mm", model.shape)
    )
    call = int(np.flatnonzero(work.kind == kind)[0])
    kernels = np.flatnonzero((work.owner == call) & (timeline.device.kind == DeviceKind.KERNEL))
    each = model.flops / model.calls
    told = {int(kernels[0]): Counted(5e8, each * 1.25), 10**9: Counted(1, 1)}
    changed = with_counters(timeline, attribution, work, result, told)
    one = next(r for r in changed.shapes if (r.name, r.shape) == ("aten::mm", model.shape))
    assert one.measured is not None
    assert one.measured.calls == 1
    assert one.measured.flops_error == pytest.approx(-0.2)
    assert one.measured.model_flops == pytest.approx(each)
    assert one.flops == pytest.approx(model.flops * 1.25)
    assert one.bytes == pytest.approx(5e8 * model.calls)
    assert one.measured.bytes_error == pytest.approx(model.bytes / model.calls / 5e8 - 1)
    untouched = [r for r in changed.shapes if r.measured is None]
    assert len(untouched) == len(result.shapes) - 1


def test_a_call_with_an_uncounted_kernel_keeps_the_model() -> None:
    timeline, attribution, work = read(RESNET50)
    result = found(RESNET50)
    owners, counts = np.unique(work.owner[work.owner != NOTHING], return_counts=True)
    call = owners[counts > 2][0]
    kernels = np.flatnonzero((work.owner == call) & (timeline.device.kind == DeviceKind.KERNEL))
    told = {int(k): Counted(1e6, None) for k in kernels[:-1]}
    assert with_counters(timeline, attribution, work, result, told).shapes == result.shapes
    told[int(kernels[-1])] = Counted(1e6, None)
    changed = with_counters(timeline, attribution, work, result, told).shapes
    (one,) = [r for r in changed if r.measured]
    assert one.measured.flops is None
    assert one.measured.bytes == 1e6 * len(kernels)


def test_measured_ceilings_of_the_same_device_come_before_the_datasheet() -> None:
    timeline, _, _ = read(RESNET50)
    entries = {
        "matmul_bf16_tflops": {"value": 750.0, "spread": 0.01},
        "memory_gb_per_s": {"value": 4200.0, "spread": 0.01},
        "launch_us": {"value": 4.0, "spread": 0.1},
    }
    ours = {"device": "NVIDIA H200", "ceilings": entries}
    other = {"device": "NVIDIA A100", "ceilings": entries}
    assert ceilings_for(timeline, [other, ours]) == Ceilings({"bf16": 750e12}, 4.2e12, "measured")
    assert ceilings_for(timeline, [other]).source == "datasheet"
    without_memory = {"device": "NVIDIA H200", "ceilings": {}}
    assert ceilings_for(timeline, [without_memory]).source == "datasheet"
    assert ceilings_for(replace(timeline, devices=[])) is None


@pytest.mark.parametrize(
    ("name", "memory", "dtype", "tflops", "gb_per_s"),
    [
        ("NVIDIA H200", None, "bf16", 989, 4800),
        ("NVIDIA H100 80GB HBM3", None, "tf32", 495, 3350),
        ("NVIDIA H100 PCIe", None, "bf16", 756, 2000),
        ("NVIDIA A100-PG509-200", None, "bf16", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", 85 * 10**9, "tf32", 156, 2039),
        ("NVIDIA A100 80GB PCIe", 85 * 10**9, "fp32", 19.5, 1935),
        ("Tesla V100-SXM2-32GB", None, "fp16", 125, 900),
        ("AMD Instinct MI300X", None, "bf16", 1307, 5300),
        ("NVIDIA L4", None, "fp16", 121, 300),
        ("NVIDIA L40S", None, "fp16", 362, 864),
        ("Tesla T4", None, "fp16", 65, 320),
        ("NVIDIA GeForce RTX 4090", None, "bf16", 165, 1008),
    ],
)
def test_datasheets(
    name: str, memory: int | None, dtype: str, tflops: float, gb_per_s: float
) -> None:
    said = datasheet_ceilings(DeviceInfo(0, name, memory))
    assert said is not None
    assert said.flops_per_s[dtype] == tflops * 1e12
    assert said.bytes_per_s == gb_per_s * 1e9


def test_unknown_devices_have_no_datasheet() -> None:
    assert datasheet_ceilings(DeviceInfo(0, "NVIDIA A10G")) is None
    assert datasheet_ceilings(DeviceInfo(0)) is None


def test_a_recording_without_device_and_products_claims_nothing() -> None:
    result = found("cpu_only_rank34.pt.trace", steps=1)
    assert result.known_share is None
    assert result.step.model_flops is None


def test_the_roofline_is_json() -> None:
    for name in (RESNET50, "vllm_decode_cuda_graphs", "large_integers_rank70.pt.trace"):
        assert json.loads(json.dumps(to_builtins(found(name)), allow_nan=False))
