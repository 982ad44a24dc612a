"""A whole trace as one document."""

import json

import pytest
from plain import TRACES
from recordings import recorded

from stepscope.analyze.run.document import to_json
from stepscope.analyze.timeline.document import analyze_ranks, trace_analysis
from stepscope.hardware.ceiling_cache import Ceiling, DeviceCeilings

NAMES = sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("*.json.gz"))
WANTED = {
    "quality", "steps", "breakdown_ns", "idle_ns", "kernels", "launch", "copies", "roofline",
    "memory", "critical_path", "source", "devices", "operators", "host", "communication",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_becomes_plain_json(name):
    document = to_json(trace_analysis(recorded(name)))
    assert json.loads(json.dumps(document, allow_nan=False)).keys() >= WANTED
    parts = document["breakdown_ns"]
    if parts["idle"] is not None:
        added = sum(parts[k] for k in ("compute", "exposed_communication", "exposed_copy", "idle"))
        assert added == parts["wall"]
        assert sum(document["idle_ns"].values()) == parts["idle"]


def test_steps_have_the_shape_they_have_in_show():
    steps = to_json(trace_analysis(recorded("resnet50_b64_h200")))["steps"]
    assert steps["count"] == 6
    assert steps["how"] == "optimizer"
    assert steps["mean_ms"] == pytest.approx(49.96, abs=0.01)
    assert steps.keys() >= {"median_ms", "p95_ms", "std_ms", "samples_per_s", "spikes", "drift"}


def test_without_a_device_nothing_is_said_about_one():
    document = to_json(trace_analysis(recorded("cpu_only_rank34.pt.trace")))
    assert document["breakdown_ns"]["idle"] is None
    assert set(document["idle_ns"].values()) == {None}
    assert document["kernels"] == []
    assert document["roofline"] is None
    assert document["breakdown_ns"]["wall"] > 0


def test_kernels_out_of_graphs_are_named_as_opaque():
    quality = to_json(trace_analysis(recorded("vllm_decode_cuda_graphs")))["quality"]
    assert quality["graph_kernels"] == 421
    assert quality["graph_opaque_ns"] > 10_000_000


def test_work_launched_before_the_recording_is_counted_not_dropped():
    quality = to_json(trace_analysis(recorded("mi300_resnet_checkpointing_stacks")))["quality"]
    assert quality["work_without_launch"] == 968


def test_a_measured_ceiling_of_the_same_device_is_preferred():
    ceilings = {
        "memory_gb_per_s": Ceiling(4000.0, 0.01),
        "matmul_tf32_tflops": Ceiling(400.0, 0.01),
    }
    measured = DeviceCeilings(key="H200", device="NVIDIA H200", ceilings=ceilings)
    document = to_json(trace_analysis(recorded("resnet50_b64_h200"), [measured]))
    assert document["roofline"]["ceilings"]["source"] == "measured"
    assert (
        to_json(trace_analysis(recorded("resnet50_b64_h200")))["roofline"]["ceilings"]["source"]
        == "datasheet"
    )


def test_ranks_are_analysed_each_and_compared():
    timeline = recorded("a100_nccl_rank0")
    document = to_json(analyze_ranks([timeline, timeline]))
    assert len(document["ranks"]) == 2
    assert len(document["comparison"]["rows"]) == 2
    json.dumps(document, allow_nan=False)
