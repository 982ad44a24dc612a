"""What the real recordings are said to be slow for."""

import json

import pytest
from recordings import recorded

from stepscope.analyze.run.document import to_json
from stepscope.analyze.timeline.document import trace_analysis
from stepscope.diagnose.findings import with_trace_findings

NAMES = (
    "resnet18_b32_h200",
    "resnet50_b64_h200",
    "gpt_b4x1024_bf16_h200",
    "a100_nccl_rank0",
    "v100_ns_timestamps.pt.trace",
    "mi300_resnet_checkpointing_stacks",
    "vllm_decode_cuda_graphs",
    "cuda_event_sync_multi_stream",
    "cpu_only_rank34.pt.trace",
    "large_integers_rank70.pt.trace",
)


@pytest.fixture(scope="module")
def diagnosed():
    known = {}

    def get(name):
        if name not in known:
            timeline = recorded(name)
            known[name] = to_json(with_trace_findings(trace_analysis(timeline), timeline))
        return known[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_fails_on_a_real_recording(name, diagnosed):
    assert diagnosed(name)["problems"] == []


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_told_as_they_should_be(name, diagnosed):
    document = diagnosed(name)
    found = document["findings"] + document["minor"]
    json.dumps(document, allow_nan=False)
    for one in found:
        assert 0 < len(one["title"]) <= 60
        assert one["why"]
        assert one["advice"]
        assert one["evidence"]
        assert 0 <= one["share"] <= 1
        assert one["kind"] in ("exact", "numeric", "semantic", "none")
        assert one["confidence"] in ("high", "medium", "low")
        assert one["scope"] in ("step", "run", "machine")
        predicted = one["predicted"]
        if predicted is not None:
            assert 1 <= predicted["low"] <= predicted["speedup"] <= predicted["high"]
            assert predicted["reason"]
    assert len({one["id"] for one in found}) == len(found)


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_same_recording_gives_the_same_findings(name, diagnosed):
    timeline = recorded(name)
    again = to_json(with_trace_findings(trace_analysis(timeline), timeline))
    for key in ("findings", "minor", "healthy", "headroom", "baseline"):
        assert again[key] == diagnosed(name)[key]


def test_a_small_network_is_launch_bound(diagnosed):
    document = diagnosed("resnet18_b32_h200")
    assert document["findings"][0]["id"] == "launch.launch_bound"
    answers = {one["question"]: one for one in document["baseline"]}
    assert answers["Is launch overhead visible?"]["answer"].startswith("yes")
    assert answers["Is the CPU the limit?"]["answer"].startswith("yes")
    assert answers["How many kernels does a step run?"]["value"] == pytest.approx(281, abs=1)


def test_a_large_network_in_fp32_leaves_the_tensor_cores_idle(diagnosed):
    first = diagnosed("resnet50_b64_h200")["findings"][0]
    assert first["id"] == "compute.low_precision"
    assert "tensor cores" in first["title"]
    assert "host is nearly the limit" in first["why"]


@pytest.mark.parametrize("name", NAMES[:3])
def test_what_could_be_is_no_less_than_any_single_fix_gives(name, diagnosed):
    document = diagnosed(name)
    could = document["headroom"]
    single = [
        one["predicted"]["step_ms"]
        for one in document["findings"]
        if one["predicted"] and one["id"] in could["by"]
    ]
    assert 0 < could["step_ms"] <= min(single) + 1e-9
    assert " ms per step could be " in could["text"]
