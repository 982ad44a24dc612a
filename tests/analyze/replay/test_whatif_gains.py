"""What each fix changes in a window."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cases import Document, case, dataset, kernel, show, site, trace
from documents import made
from msgspec import structs
from recordings import recorded
from whatif_tasks import host, make

from stepscope.analyze.replay.known import device_limits, factors_by_operator, time_at_bound
from stepscope.analyze.replay.simulator import replay_tasks
from stepscope.analyze.replay.tasks import LoaderQueue, StretchKind
from stepscope.analyze.timeline.document import trace_analysis
from stepscope.analyze.timeline.roofline.rates import OperatorRate
from stepscope.diagnose.case import Case, case_of_trace
from stepscope.fixes.base import Fix
from stepscope.fixes.registry import FIX_NAMES, all_fixes, fix_named
from stepscope.hardware.ceiling_cache import Ceiling, DeviceCeilings, save_ceilings

MS = 1_000_000
H200 = {"fp32": 50e12, "tf32": 400e12, "bf16": 700e12}


@cache
def of_recording(name: str) -> Case:
    timeline = recorded(name)
    found = case_of_trace(trace_analysis(timeline), timeline)
    assert found is not None
    return found


def replayed(one: Case, fix: str, value: str | None = None) -> float:
    """The step with a fix, as a share of the unchanged one."""
    changes = fix_named(fix).predict(value, one)
    assert changes is not None
    assert one.model is not None
    return float(one.model.replay(*changes).step_ms / one.model.step_ms)


def device_time(one: Case, fix: str, value: str | None = None) -> float:
    """The device's own time with a fix, as a share of what it is."""
    changes = fix_named(fix).predict(value, one)
    model: Any = one.model
    assert changes is not None
    work = model.changed(*changes).work
    return float(work.duration[~work.gone].sum() / model.tasks.work.duration.sum())


def measured(
    monkeypatch, tmp_path, fp32: float, bf16: float, spread: float = 0.05, memory: float = 50.0
) -> None:
    """A cache in which the processor "CPU" was measured, in TFLOP/s and GB/s."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    values = {"matmul_fp32_tflops": fp32, "matmul_bf16_tflops": bf16, "memory_gb_per_s": memory}
    entries = {name: Ceiling(value, spread) for name, value in values.items()}
    save_ceilings(DeviceCeilings(key="CPU x 2", device="CPU", ceilings=entries))


def on_host(*rows: tuple[str, int, float]) -> Document:
    operators = [
        {"name": name, "count": n, "self_ns": int(n * us * 1e3), "total_ns": 0}
        for name, n, us in rows
    ]
    return trace("cpu", host={"operators": operators})


def test_every_fix_is_known_or_said_not_to_show_in_a_step():
    for fix in all_fixes():
        assert fix.acts_in_step == (type(fix).predict is not Fix.predict), fix.name


@pytest.mark.parametrize("fix", FIX_NAMES)
def test_empty_documents_give_changes_or_none_and_never_raise(fix):
    for device in ("cuda", "cpu"):
        for one in (case(device), case(device, show={}, trace={}), case(device, show=show(device))):
            changes = fix_named(fix).predict(None, one)
            assert changes is None or all(callable(change) for change in changes)


def test_bf16_halves_what_a_resnet50_takes_of_the_device():
    assert 0.4 < device_time(of_recording("resnet50_b64_h200"), "amp", "bf16") < 0.65


def test_a_program_in_bf16_gains_nothing_from_autocast():
    assert fix_named("amp").predict("bf16", of_recording("gpt_b4x1024_bf16_h200")) is None


def test_tf32_concerns_only_what_is_multiplied_in_fp32():
    one = of_recording("resnet50_b64_h200")
    assert 0.99 < device_time(one, "tf32", "on") <= 1.0
    assert fix_named("tf32").predict("off", one) is None


def test_channels_last_takes_the_layout_changes_away_and_normalises_faster():
    share = device_time(of_recording("resnet50_b64_h200"), "channels_last")
    normalising = 0.4 * 10.8  # what the recording has of it, less what is left
    assert share == pytest.approx(1 - (0.95 * 3.43 + normalising) / 31.9, abs=0.01)


def test_a_cuda_graph_leaves_a_launch_bound_step_to_the_device():
    assert replayed(of_recording("resnet18_b32_h200"), "cuda_graph") < 0.25
    assert fix_named("cuda_graph").predict(None, case("cpu")) is None


def test_compiling_for_graphs_gains_more_than_compiling_alone():
    one = of_recording("resnet18_b32_h200")
    graphs, plain = replayed(one, "compile", "reduce-overhead"), replayed(one, "compile", "default")
    assert graphs < plain < 0.8


def test_a_fused_optimizer_moves_its_state_once():
    one = of_recording("gpt_b4x1024_bf16_h200")
    assert device_time(one, "fused_optimizer") == pytest.approx(1 - 0.65 * 4.66 / 21.25, abs=0.02)


def test_a_fused_optimizer_is_bounded_by_its_bytes_where_they_are_known():
    roofline = {"ceilings": {"flops_per_s": H200, "bytes_per_s": 4e12}, "shapes": []}
    phases = [{"name": "optimizer", "total_ns": 6 * MS, "count": 60}]
    window = trace(roofline=roofline, by={"phase": phases})
    optimizers = [{"id": 0, "name": "AdamW", "fused": None}]
    one = case(show=show(config={"optimizers": optimizers}), trace=window)
    changes = fix_named("fused_optimizer").predict(None, one)
    tasks: Any = of_recording("gpt_b4x1024_bf16_h200").model
    after = changes[0](tasks.tasks).work if changes else None
    assert after is not None
    gone = after.duration[~after.gone].sum() / tasks.tasks.work.duration.sum()
    least_ms = 25e6 * 28 / (4e12 * 0.8) * 1e3
    assert gone == pytest.approx(1 - (1 - least_ms / 1.0) * 4.66 / 21.25, abs=0.02)


def optimizer_share(one: Case, fix: str, value: str | None = None) -> float:
    """What is left of 10 ms in the optimizer of a processor."""
    changes = fix_named(fix).predict(value, one)
    assert changes is not None
    tasks = make(host(1000), host(10_000, "optimizer"))
    for change in changes:
        tasks = change(tasks)
    return float((replay_tasks(tasks).step_ms - 1.0) / 10.0)


def test_no_ceiling_keeps_a_fused_optimizer_slower_than_the_present_ones_rate(
    monkeypatch, tmp_path
):
    measured(monkeypatch, tmp_path, fp32=1.0, bf16=1.0, memory=0.5)
    optimizers = [{"id": 0, "name": "AdamW", "fused": None}]
    run = show("cpu", config={"optimizers": optimizers}, phases_ms={"optimizer": 10.0})
    assert optimizer_share(case("cpu", show=run), "fused_optimizer") == pytest.approx(7 / 20)


@pytest.mark.parametrize(("calls_ms", "left"), [(6.8, 0.6), (3.4, 0.8), (60.0, 0.6)])
def test_on_a_processor_only_calls_of_models_are_compiled(calls_ms, left):
    """A step has 6.8 ms of forward and 11 of backward; models are called for `calls_ms`."""
    ran = (("forward", calls_ms), ("backward", 11.0))
    sites = [site(what, 50, 100 * ms, count=100) for what, ms in ran]
    run = show("cpu", sites=sites)
    changes = fix_named("compile").predict("default", case("cpu", show=run))
    assert changes is not None
    tasks = make(host(10_000, "forward", StretchKind.PYTHON), host(1000, "other"))
    for change in changes:
        tasks = change(tasks)
    assert (replay_tasks(tasks).step_ms - 1.0) / 10.0 == pytest.approx(left)


def test_fusing_few_parameters_on_a_processor_gains_little():
    optimizers = [{"id": 0, "name": "Adam", "fused": None}]

    def left(ms: float, **more: Any) -> float:
        run = show("cpu", config={"optimizers": optimizers}, phases_ms={"optimizer": ms}, **more)
        changes = fix_named("fused_optimizer").predict(None, case("cpu", show=run))
        assert changes is not None
        tasks = make(host(1000), host(1000 * ms, "optimizer"))
        for change in changes:
            tasks = change(tasks)
        return float((replay_tasks(tasks).step_ms - 1.0) / ms)

    several = {"by_optimizer": [{"name": "Adam", "count": 200}] * 2}
    assert left(0.15) > left(0.3) > left(1.2) > 0.35
    assert left(0.3, steps=several) > left(0.3)


def test_gradients_of_several_batches_have_to_be_added_up():
    one = case("cpu", show=show("cpu"))
    assert 0.5 < optimizer_share(one, "accumulate", "2") < 0.65
    assert 0.25 < optimizer_share(one, "accumulate", "4") < optimizer_share(one, "accumulate")


def test_an_optimizer_that_is_fused_is_left_alone():
    assert fix_named("fused_optimizer").predict(None, case(show=show(), trace=trace())) is None
    assert fix_named("foreach").predict(None, case(show=show(), trace=trace())) is None


def test_bf16_on_a_processor_only_where_it_was_measured_to_be_faster(monkeypatch, tmp_path):
    one = case("cpu", show=show("cpu"), trace=on_host(("aten::addmm", 60, 900.0)))
    measured(monkeypatch, tmp_path, fp32=1.0, bf16=4.0)
    assert fix_named("amp").predict("bf16", one) is not None
    measured(monkeypatch, tmp_path, fp32=1.0, bf16=0.8)
    assert fix_named("amp").predict("bf16", one) is None
    measured(monkeypatch, tmp_path, fp32=1.0, bf16=2.0, spread=0.5)
    assert fix_named("amp").predict("bf16", one) is None


def test_a_processors_ceilings_are_those_of_its_model(monkeypatch, tmp_path):
    measured(monkeypatch, tmp_path, fp32=1.0, bf16=4.0, spread=0.0)
    assert device_limits(case("cpu", show=show("cpu"))).bytes_per_s == 50e9
    other = show("cpu", config={"machine": {"cpu": {"model": "another"}}})
    assert device_limits(case("cpu", show=other)).flops_per_s == {}


def test_a_row_keeps_what_its_ceiling_does_not_explain():
    row = made(OperatorRate, time_ns=10 * MS, least_ns=3 * MS, kernels=10)
    assert time_at_bound(row, 1.5 * MS, rest=0.5) == pytest.approx(1.5 / 0.75 * MS + 6 * MS * 0.5)
    assert time_at_bound(structs.replace(row, least_ns=None), MS, rest=0.5) is None
    short = made(OperatorRate, time_ns=20_000, least_ns=100, kernels=10)
    assert time_at_bound(short, 50, rest=0.1) is None  # no kernel is shorter than 2 µs


def test_operators_are_weighed_by_the_time_of_their_shapes():
    times = (("aten::mm", 30), ("aten::mm", 10), ("aten::add", 5))
    rows = [made(OperatorRate, name=name, time_ns=time) for name, time in times]
    factors = factors_by_operator(rows, lambda row: 10.0 if row.time_ns == 30 else None)
    assert factors == {"aten::mm": 0.5}


def test_cached_samples_leave_collating():
    model: Any = of_recording("resnet18_b32_h200").model
    changes = fix_named("cache").predict(None, case(show=show(pipeline=[dataset()])))
    assert changes is not None
    loader = changes[0](replace(model.tasks, loader=LoaderQueue(10.0, 0))).loader
    assert loader is not None
    assert loader.batch_ms == pytest.approx(10.0 * (0.1 + 0.02))


def test_more_threads_only_for_large_operators_of_a_processor():
    run = show("cpu", config={"switches": {"threads": 1}})
    large = case("cpu", show=run, trace=on_host(("aten::addmm", 60, 900.0)))
    small = case("cpu", show=run, trace=on_host(("aten::addmm", 60, 9.0)))
    assert fix_named("threads").predict("4", large) is not None
    assert fix_named("threads").predict("4", small) is None
    assert fix_named("threads").predict("4", case(show=show(), trace=trace())) is None


def test_convolutions_are_tuned_only_where_they_are_not():
    convolutions = trace(kernels=[kernel("conv", 60 * MS, category="convolution")])
    on = case(show=show(), trace=convolutions)
    off = case(show=show(config={"switches": {"cudnn_benchmark": False}}), trace=convolutions)
    assert fix_named("cudnn_benchmark").predict(None, on) is None
    assert fix_named("cudnn_benchmark").predict(None, off) is not None
