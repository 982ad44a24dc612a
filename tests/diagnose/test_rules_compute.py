"""Rules about what the device (or the processor) computes, and how."""

from typing import Any

import pytest
from cases import PROGRAM, Document, case, kernel, loader, show, trace
from rulings import findings_of, of_recording, only

COMPUTE = (
    "compute.low_precision",
    "compute.odd_sizes",
    "compute.layout_changes",
    "compute.naive_attention",
    "compute.unfused_pointwise",
    "compute.cudnn_benchmark_off",
    "compute.small_batch",
    "compute.debug_modes",
    "compute.scaler_collapse",
    "compute.few_threads",
)
MS = 1_000_000
H200 = {"fp32": 50e12, "tf32": 400e12, "bf16": 700e12, "fp16": 700e12}


def row(name: str, shape: str, dtype: str, ms: float, share: float, **changes: Any) -> Document:
    """An operator of the roofline: `ms` a step in a window of 6, at `share` of its ceiling."""
    time = int(6 * ms * MS)
    return {
        "name": name, "shape": shape, "category": "matmul", "dtype": dtype, "calls": 60,
        "kernels": 60, "time_ns": time, "flops": time * share / 1e9 * H200[dtype],
        "bytes": 1e8, "least_ns": time * share, "share": share, "ceiling": "compute",
        "bound": "compute",
    } | changes  # fmt: skip


def with_rows(*rows: Document, **changes: Any) -> Document:
    """A window whose device is busy throughout with these."""
    ceilings = {"flops_per_s": H200, "bytes_per_s": 4e12, "source": "measured"}
    roofline = {"ceilings": ceilings, "shapes": list(rows), "kinds": [], "step": {"mfu": 0.1}}
    return trace(roofline=roofline, **changes)


def on_host(*rows: tuple[str, int, float]) -> Document:
    """A CPU window: operators by name, calls a step and µs each, in 6 steps of 24 ms."""
    operators = [
        {"name": name, "count": 6 * n, "self_ns": int(6 * n * us * 1e3), "total_ns": 0}
        for name, n, us in rows
    ]
    calls = sum(n for _, n, _ in rows)
    thread = {"name": "main", "events": {"operators": 6 * calls}}
    return trace("cpu", host={"operators": operators, "threads": [thread]})


def test_a_resnet50_recording_is_fp32_with_idle_tensor_cores_and_host_and_device_close():
    one = of_recording("resnet50_b64_h200")
    finding = only("compute.low_precision", one)
    assert "fp32" in finding.title
    assert "tensor cores" in finding.title
    assert "host is nearly the limit" in finding.why
    assert str(finding.fix) == "amp=bf16"
    assert finding.predicted is not None
    assert 1.02 < finding.predicted.speedup < 1.4
    assert "CUDA graph" in finding.advice
    evidence = {e.what: e.value for e in finding.evidence}
    assert evidence["of that on tensor cores"] < 40
    assert evidence["MFU"] < 10


def test_a_launch_bound_recording_gains_nothing_from_precision():
    assert findings_of("compute.low_precision", of_recording("resnet18_b32_h200")) == []


def test_a_bf16_recording_has_nothing_in_fp32_to_speak_of():
    one = of_recording("gpt_b4x1024_bf16_h200")
    assert [findings_of(name, one) for name in COMPUTE] == [[]] * len(COMPUTE)


def test_on_a_device_without_bf16_units_fp16_is_proposed():
    finding = only("compute.low_precision", of_recording("v100_ns_timestamps.pt.trace"))
    assert str(finding.fix) == "amp=fp16"


def test_fp32_products_may_use_tf32_where_that_brings_as_much():
    window = with_rows(row("aten::mm", "[[4096,4096],[4096,4096]]", "fp32", 15.0, 0.9))
    one = case(show=show(config={"autocast": None}), trace=window, after=8.0)
    finding = only("compute.low_precision", one)
    assert str(finding.fix) == "tf32=on"
    assert "set_float32_matmul_precision" in finding.advice
    assert "autocast" in finding.advice


def test_autocast_is_not_proposed_twice():
    window = with_rows(row("aten::mm", "[[4096,4096],[4096,4096]]", "fp32", 15.0, 0.9))
    assert findings_of("compute.low_precision", case(show=show(), trace=window, after=8.0)) == []


def test_bf16_is_not_promised_on_a_processor_nobody_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    window = on_host(("aten::addmm", 10, 1500.0))
    assert (
        findings_of("compute.low_precision", case("cpu", show=show("cpu"), trace=window, after=9.0))
        == []
    )


def test_sizes_off_by_one_are_slower_than_the_others():
    odd = row("aten::mm", "[[4096,768],[768,50257]]", "bf16", 8.0, 0.2)
    even = row("aten::mm", "[[4096,768],[768,3072]]", "bf16", 6.0, 0.7)
    finding = only("compute.odd_sizes", case(show=show(), trace=with_rows(odd, even), after=15.0))
    assert "50257" in finding.title
    assert finding.share == pytest.approx(8 / 20)


@pytest.mark.parametrize(
    "rows",
    [
        [row("aten::mm", "[[4096,768],[768,50304]]", "bf16", 8.0, 0.2)],
        [row("aten::mm", "[[4096,768],[768,50257]]", "bf16", 8.0, 0.65)],
        [row("aten::addmm", "[[10],[64,512],[512,10]]", "bf16", 8.0, 0.1)],
        [row("aten::mm", "not shapes", "bf16", 8.0, 0.1)],
    ],
    ids=["multiples", "fast all the same", "a few classes", "unreadable"],
)
def test_sizes_that_cost_nothing(rows):
    assert (
        findings_of("compute.odd_sizes", case(show=show(), trace=with_rows(*rows), after=15.0))
        == []
    )


def turned(ms: float) -> Document:
    return trace(
        kernels=[
            kernel("conv", 60 * MS, category="convolution", tensor_core=True),
            kernel("nchwToNhwcKernel", int(6 * ms * MS), category="layout change"),
        ]
    )


def test_layout_changes_around_convolutions():
    finding = only("compute.layout_changes", case(show=show(), trace=turned(3.0), after=18.0))
    assert str(finding.fix) == "channels_last"
    assert finding.share == pytest.approx(3 / 20)
    assert finding.where[-1].kernel == "nchwToNhwcKernel"


def test_layout_changes_of_a_model_in_channels_last_come_from_its_inputs():
    models = [{"name": "Net", "memory_format": "channels_last", "trainable": 1}]
    run = show(config={"models": models})
    finding = only("compute.layout_changes", case(show=run, trace=turned(3.0), after=18.0))
    assert finding.fix is None
    assert "already" in finding.advice


def test_few_layout_changes_are_no_matter():
    assert (
        findings_of("compute.layout_changes", case(show=show(), trace=turned(0.3), after=18.0))
        == []
    )


def test_attention_written_out_on_the_gpu():
    rows = [
        row("aten::bmm", "[[48,1024,64],[48,64,1024]]", "bf16", 2.0, 0.4),
        row("aten::_softmax", "[[4,12,1024,1024],[],[]]", "bf16", 4.0, 0.9, category="softmax"),
        row("aten::mul", "[[4,12,1024,1024],[]]", "bf16", 2.0, 0.9, category="pointwise"),
        row("aten::mul", "[[4,64,1024,1024],[]]", "bf16", 3.0, 0.9, category="pointwise"),
    ]
    finding = only("compute.naive_attention", case(show=show(), trace=with_rows(*rows), after=13.0))
    assert finding.share == pytest.approx(8 / 20)
    assert str(finding.fix) == "sdpa"


def test_attention_written_out_on_the_processor():
    window = on_host(("aten::bmm", 12, 500.0), ("aten::_softmax", 2, 900.0))
    one = case("cpu", show=show("cpu"), trace=window, after=15.0)
    assert only("compute.naive_attention", one).share == pytest.approx(7.8 / 24)


def test_a_classifiers_softmax_is_no_attention():
    window = on_host(("aten::addmm", 12, 500.0), ("aten::_softmax", 2, 900.0))
    assert (
        findings_of(
            "compute.naive_attention", case("cpu", show=show("cpu"), trace=window, after=15.0)
        )
        == []
    )


def test_long_pointwise_chains_on_either_device():
    window = trace(
        kernels=[
            kernel("gemm", 30 * MS, count=60, category="matmul", tensor_core=True),
            kernel("elementwise", 60 * MS, count=1200, category="pointwise"),
        ]
    )
    finding = only("compute.unfused_pointwise", case(show=show(), trace=window, after=13.0))
    assert str(finding.fix) == "compile=default"
    assert finding.share == pytest.approx(0.5)
    host = on_host(("aten::mul", 60, 150.0), ("aten::addmm", 8, 300.0))
    one = case("cpu", show=show("cpu"), trace=host, after=13.0)
    assert only("compute.unfused_pointwise", one).share == pytest.approx(9 / 24)


def test_the_optimizers_own_operators_and_compiled_models_are_no_chains():
    adam = on_host(("aten::sqrt", 99, 50.0), ("aten::div", 99, 50.0), ("aten::addcdiv_", 99, 50.0))
    assert (
        findings_of(
            "compute.unfused_pointwise", case("cpu", show=show("cpu"), trace=adam, after=9.0)
        )
        == []
    )
    host = on_host(("aten::mul", 60, 150.0))
    run = show("cpu", config={"compile": [{"what": "Net"}]})
    assert (
        findings_of("compute.unfused_pointwise", case("cpu", show=run, trace=host, after=9.0)) == []
    )


def convolving(calls: int = 60) -> Document:
    rows = [
        row("aten::cudnn_convolution", f"[[64,{n},56,56],[{n},{n},3,3]]", "tf32", 2.0, 0.2,
            category="convolution", calls=calls)
        for n in (64, 128, 256, 512)
    ]  # fmt: skip
    convolutions = [kernel("conv", 48 * MS, category="convolution", tensor_core=True)]
    return with_rows(*rows, kernels=convolutions)


def test_cudnn_may_look_for_faster_algorithms():
    run = show(config={"switches": {"cudnn_benchmark": False}})
    finding = only("compute.cudnn_benchmark_off", case(show=run, trace=convolving(), after=19.0))
    assert finding.confidence == "low"
    assert str(finding.fix) == "cudnn_benchmark"


def test_not_where_it_does_or_may_not_or_meets_new_shapes_all_the_time():
    off: Document = {"cudnn_benchmark": False}
    for switches, window in (
        ({"cudnn_benchmark": True}, convolving()),
        (off | {"cudnn_deterministic": True}, convolving()),
        (off, convolving(calls=1)),
    ):
        run = show(config={"switches": switches})
        assert (
            findings_of("compute.cudnn_benchmark_off", case(show=run, trace=window, after=19.0))
            == []
        )


def test_two_samples_a_step_are_few_for_a_gpu():
    run = show(steps={"samples_per_step": 2.0}, loaders=[loader(batch_size=2)])
    window = trace(
        breakdown_ns={"compute": 12 * MS, "idle": 132 * MS, "exposed_copy": 0},
        idle_ns={"host": 132 * MS, "between_kernels": 0},
    )
    finding = only("compute.small_batch", case(show=run, trace=window, after=18.0))
    assert finding.kind == "semantic"
    assert str(finding.fix) == "batch=16"
    assert finding.predicted is not None
    assert finding.predicted.speedup == pytest.approx(8, rel=0.1)
    assert finding.where[0].file == PROGRAM
    usual = show(steps={"samples_per_step": 32.0})
    assert findings_of("compute.small_batch", case(show=usual, trace=window, after=18.0)) == []


def test_kernels_too_short_to_grow_with_the_batch_count_as_fixed():
    run = show(steps={"samples_per_step": 2.0}, loaders=[loader(batch_size=2)])
    window = trace(
        breakdown_ns={"compute": 36 * MS, "idle": 108 * MS, "exposed_copy": 0},
        idle_ns={"host": 108 * MS, "between_kernels": 0},
    )

    def times(mean_us: float) -> str:
        kernel = {"name": "k", "category": "pointwise", "total_ns": 36 * MS,
                  "count": int(36e3 / mean_us)}  # fmt: skip
        one = case(show=run, trace=window | {"kernels": [kernel]}, after=18.0)
        return str(only("compute.small_batch", one).fix)

    assert times(4.0) == "batch=16"
    assert times(14.0) == "batch=8"


def test_anomaly_detection_left_on():
    window = on_host(("aten::addmm", 20, 300.0), ("aten::ne", 40, 30.0), ("aten::any", 40, 30.0))
    run = show("cpu", config={"switches": {"anomaly_detection": True}})
    finding = only("compute.debug_modes", case("cpu", show=run, trace=window, after=14.0))
    assert finding.title == "Anomaly detection is on"
    assert finding.share == pytest.approx(2.4 / 24 + 40 * 0.08 / 20)
    assert finding.where[0].line == 58


@pytest.mark.parametrize(("value", "found"), [("1", 1), ("0", 0), ("", 0)])
def test_launches_that_wait_for_each_kernel(value, found):
    run = show(config={"environment": {"CUDA_LAUNCH_BLOCKING": value}}, gpu={"busy_fraction": 0.6})
    findings = findings_of("compute.debug_modes", case(show=run, trace=trace()))
    assert [one.title for one in findings] == ["CUDA_LAUNCH_BLOCKING is set"] * found
    assert all(one.share == pytest.approx(0.4) for one in findings)


def test_deterministic_algorithms_fill_memory():
    window = on_host(("aten::fill_", 100, 40.0), ("aten::addmm", 20, 300.0))
    run = show("cpu", config={"switches": {"deterministic": True}})
    finding = only("compute.debug_modes", case("cpu", show=run, trace=window, after=18.0))
    assert finding.share == pytest.approx(4 / 24)
    assert "filled" in finding.why


@pytest.mark.parametrize(
    ("scales", "skipped", "found"),
    [([65536.0, 0.5], 30, 1), ([65536.0] * 5, 60, 1), ([65536.0, 32768.0], 5, 0), ([], 0, 0)],
    ids=["fell below 1", "skips on and on", "found its scale", "not read yet"],
)  # fmt: skip
def test_a_gradient_scaler_that_throws_updates_away(scales, skipped, found):
    run = show(config={"scaler": {"scales": scales, "skipped_updates": skipped}})
    findings = findings_of("compute.scaler_collapse", case(show=run))
    assert len(findings) == found
    if found:
        assert findings[0].fix is None, "amp gives way to a program that scales its losses"
        assert findings[0].share == pytest.approx(skipped / 200)


def test_one_thread_on_a_machine_of_sixteen_cores():
    run = show("cpu", config={"switches": {"threads": 1}})
    window = on_host(("aten::addmm", 20, 900.0))
    finding = only("compute.few_threads", case("cpu", show=run, trace=window, after=6.0))
    assert str(finding.fix) == "threads=12"  # four cores are the loader's workers'
    assert finding.share == pytest.approx(18 / 24)


@pytest.mark.parametrize(
    "run",
    [
        show("cpu", config={"switches": {"threads": 12}}),
        show("cpu", config={"switches": {"threads": 1}}, host={"cpu_percent": 1500.0}),
        show("cpu", config={"switches": {"threads": 1}}, loaders=[loader(num_workers=15)]),
    ],
    ids=["all", "the cores are busy", "the workers have them"],
)
def test_threads_that_are_enough(run):
    window = on_host(("aten::addmm", 20, 900.0))
    assert findings_of("compute.few_threads", case("cpu", show=run, trace=window, after=6.0)) == []


@pytest.mark.parametrize("name", COMPUTE)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_healthy_runs_have_none_of_these(name, device):
    assert findings_of(name, case(device, show=show(device), trace=trace(device), after=20.0)) == []
    assert findings_of(name, case(device, show=show(device))) == []


@pytest.mark.parametrize("name", COMPUTE)
def test_documents_with_nothing_in_them_raise_nothing(name):
    for device in ("cuda", "cpu"):
        assert findings_of(name, case(device)) == []
        assert findings_of(name, case(device, show={}, trace={})) == []
