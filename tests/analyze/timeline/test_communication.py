"""Communication: bytes, bandwidths and what is exposed, by hand and from the raw recordings."""

from dataclasses import replace

import pytest
from handmade import Handmade
from msgspec import to_builtins
from plain import TRACES, load
from recordings import recorded

from stepscope.analyze.timeline.communication import (
    bus_factor,
    collective_kind,
    dtype_bytes,
    shape_bytes,
    size_collective,
    study_communication,
)
from stepscope.analyze.timeline.steps import RecordedStep, break_down, find_steps
from stepscope.record.timeline import Collective, Shapes

ONE = [RecordedStep("step 1", 0, 1000)]
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all_gather"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("all_to_allv", "all_to_all"),
        ("nccl:broadcast", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("void vllm::cross_device_reduce_1stage", "all_reduce"),
        ("ncclDevKernel_Generic", "other"),
    ],
)
def test_the_kind_is_told_by_the_name(name, kind):
    assert collective_kind(name) == kind


def test_bus_bandwidth_counts_what_each_link_carries():
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("all_to_all", 2) == 0.5
    assert bus_factor("broadcast", None) == 1
    assert bus_factor("all_reduce", None) is None
    assert bus_factor("all_reduce", 1) is None
    assert bus_factor("other", 4) is None


def test_the_size_of_an_all_gather_is_its_output_and_of_a_reduce_scatter_its_input():
    def size(name, given, made, ranks=4):
        return size_collective(Collective(name, "BFloat16", given, made, ranks), "").bytes

    assert size("_allgather_base", 100, 400) == 800
    assert size("_allgather_base", 100, None) == 800
    assert size("_reduce_scatter_base", 400, 100) == 800
    assert size("allreduce", 100, 100) == 200
    assert size("allreduce", None, None) is None
    assert size("allreduce", 10**30, 10**30) is None
    assert size_collective(Collective("allreduce", "Unheard", 1, 1), "").bytes is None


def test_element_sizes_are_known_by_either_spelling():
    assert dtype_bytes("Float") == dtype_bytes("float") == dtype_bytes("torch.float32") == 4
    assert dtype_bytes("c10::BFloat16") == dtype_bytes("Half") == 2
    assert dtype_bytes("long int") == dtype_bytes("Long") == 8
    assert dtype_bytes("Float8_e4m3fn") == 1
    assert dtype_bytes(None) is None


@pytest.mark.parametrize(
    "dims", [b"", b"[]", b"nonsense", b"[[Infinity]]", b"[5]", b'[["x"]]', b"[[-4]]", b"{}"]
)
def test_shapes_that_make_no_sense_have_no_size(dims):
    assert shape_bytes(Shapes(dims=dims, types=b'["float"]')) is None


def test_exposed_is_what_nothing_was_computed_under():
    made = Handmade()
    made.work(0, 100, name=RING, stream="8")
    made.work(40, 70, name="gemm")
    made.work(70, 80, name="Memcpy DtoD (Device -> Device)")
    made.work(200, 250, name=RING, stream="8")
    found = study_communication(made.timeline(), ONE)
    assert (found.device_ns, found.exposed_ns) == (150, 120)
    assert found.overlap_share == pytest.approx(0.2)
    (kind,) = found.kinds
    assert (kind.kind, kind.count, kind.time_ns, kind.exposed_ns) == ("all_reduce", 2, 150, 120)
    assert [(e.start_ns, e.exposed_ns, e.step) for e in found.largest_exposed] == [
        (0, 70, "step 1"),
        (200, 50, "step 1"),
    ]


def test_what_was_not_recorded_is_none():
    made = Handmade()
    made.work(0, 100, name=RING)
    (kind,) = study_communication(made.timeline(), ONE).kinds
    assert (kind.sized, kind.bytes) == (0, None)
    assert (kind.algorithm_bytes_per_s, kind.bus_bytes_per_s) == (None, None)
    assert kind.group_sizes == []


def test_bandwidths_are_of_those_with_a_known_size():
    made = Handmade()
    made.work(0, 100, name=RING, collective=0)
    made.work(100, 900, name=RING)
    known = Collective("allreduce", "Float", 1000, 1000, 4)
    timeline = replace(made.timeline(), collectives=[known])
    (kind,) = study_communication(timeline, ONE).kinds
    assert (kind.count, kind.sized, kind.bytes) == (2, 1, 4000)
    assert kind.algorithm_bytes_per_s == pytest.approx(4000 / 100e-9)
    assert kind.bus_bytes_per_s == pytest.approx(1.5 * 4000 / 100e-9)


def test_parameters_are_taken_from_the_call_that_launched_a_kernel():
    made = Handmade()
    made.operator("record_param_comms", 0, 50)
    made.work(60, 100, (10, 20), RING)
    timeline = made.timeline()
    timeline.host.collective[0] = 0
    timeline = replace(timeline, collectives=[Collective("allreduce", "Half", 7, 7, 2)])
    (kind,) = study_communication(timeline, ONE).kinds
    assert (kind.bytes, kind.group_sizes) == (14, [2])


def test_a_recording_that_communicates_nothing_has_none():
    assert study_communication(Handmade().timeline(), ONE) is None
    assert study_communication(recorded("resnet18_b32_h200"), ONE) is None


def test_gloo_is_communication_of_the_host():
    timeline = recorded("cpu_only_rank34.pt.trace")
    found = study_communication(timeline, find_steps(timeline).steps)
    (kind,) = found.kinds
    assert (kind.kind, kind.where, kind.count, kind.group_sizes) == (
        "all_reduce",
        "host",
        10,
        [300],
    )
    assert kind.bytes == 5 * 4 * (321271 + 2082411)
    assert (kind.exposed_ns, kind.overlap_share, found.device_ns) == (None, None, 0)
    assert 0 < found.host_ns < kind.time_ns


@pytest.mark.parametrize("name", ["a100_nccl_rank0", "mi300_resnet_checkpointing_stacks"])
def test_bytes_and_times_are_those_in_the_raw_recording(name):
    timeline = recorded(name)
    found = study_communication(timeline, find_steps(timeline).steps)
    kernels = [
        (event["args"], event["dur"])
        for event in load(TRACES / f"{name}.json.gz")["traceEvents"]
        if event.get("cat") == "kernel" and "Collective name" in event["args"]
    ]
    reduces = [(a, dur) for a, dur in kernels if a["Collective name"] == "allreduce"]
    size = {"Float": 4, "BFloat16": 2}
    kind = next(kind for kind in found.kinds if kind.kind == "all_reduce")
    assert kind.count == len(reduces)
    assert kind.bytes == sum(a["In msg nelems"] * size[a["dtype"]] for a, _ in reduces)
    assert kind.time_ns == sum(round(dur * 1000) for _, dur in reduces)
    assert to_builtins(found)["kinds"]


@pytest.mark.parametrize(
    "name", ["a100_nccl_rank0", "mi300_resnet_checkpointing_stacks", "v100_train_2ranks_rank1"]
)
def test_totals_agree_with_the_breakdown(name):
    timeline = recorded(name)
    steps = find_steps(timeline)
    found = study_communication(timeline, steps.steps)
    (device,) = break_down(timeline, steps)
    assert found.device_ns == device.whole.communication
    assert found.exposed_ns == device.whole.exposed_communication
    assert all(e.exposed_ns <= e.duration_ns for e in found.largest_exposed)
