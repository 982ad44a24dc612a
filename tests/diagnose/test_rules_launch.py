"""Rules about the host that feeds the device too slowly."""

from types import SimpleNamespace

import numpy as np
import pytest
from cases import Document, case, idle_for_host, show, sync, trace
from rulings import findings_of, of_recording, only

from stepscope.record.finding import ChangeKind
from stepscope.record.row_log import STEP_PHASES

LAUNCH = (
    "launch.launch_bound",
    "launch.python_loops",
    "launch.python_heavy_forward",
    "launch.other_code",
    "launch.unfused_optimizer",
    "launch.recompiles",
    "launch.graph_breaks",
)
MS = 1_000_000


def operators(*rows: tuple[str, int, float]) -> list[Document]:
    """Name, calls per step and µs each, in a window of 6 steps."""
    return [
        {"name": name, "count": 6 * n, "self_ns": int(6 * n * us * 1e3), "total_ns": 0}
        for name, n, us in rows
    ]


def host_of(*rows: tuple[str, int, float], python_ms: float = 1.0) -> Document:
    """A CPU window of 6 steps of 24 ms with these operators and so much Python in each."""
    calls = sum(n for _, n, _ in rows)
    thread = {"name": "main", "events": {"operators": 6 * calls}}
    path = {"by_category": [{"category": "python", "side": "host", "ns": int(6 * python_ms * MS)}]}
    host = {"operators": operators(*rows), "threads": [thread]}
    return trace("cpu", host=host, critical_path=path)


def test_a_resnet18_recording_is_launch_bound():
    one = of_recording("resnet18_b32_h200")
    finding = only("launch.launch_bound", one)
    assert finding.share > 0.8
    assert finding.fix is not None
    assert finding.fix.name == "cuda_graph"
    assert finding.predicted is not None
    assert finding.predicted.speedup > 3
    assert "281 kernels" in finding.why


def test_where_host_and_device_are_close_together_launches_are_not_blamed():
    one = of_recording("resnet50_b64_h200")
    assert findings_of("launch.launch_bound", one) == []


def test_a_run_whose_device_idles_for_launches_says_how_much_of_the_bare_step():
    one = case(show=show(), trace=idle_for_host(6.0), after=8.0)
    finding = only("launch.launch_bound", one)
    assert finding.share == pytest.approx((20 - 6 - 0.1) / 20)
    assert finding.predicted is not None
    assert finding.predicted.step_ms == 8.0
    assert {place.line for place in finding.where} == {56, 58, 59}


def test_kernels_from_cuda_graphs_are_not_launch_bound():
    window = idle_for_host(6.0)
    window["launch"]["graph_kernels"] = 2000
    assert findings_of("launch.launch_bound", case(show=show(), trace=window, after=8.0)) == []


def test_launches_of_an_optimizer_that_could_be_fused_are_its_own_rules():
    spent = {"data_wait": 0.0, "h2d": 0.0, "forward": 3.0, "backward": 5.0, "optimizer": 12.0}
    adam = {"id": 0, "name": "Adam", "parameters": 160, "foreach": False, "fused": None}
    one = case(
        show=show(phases_ms=spent, config={"optimizers": [adam]}),
        trace=idle_for_host(6.0),
        after=8.0,
    )
    assert findings_of("launch.launch_bound", one) == []
    fused = show(phases_ms=spent, config={"optimizers": [adam | {"fused": True}]})
    assert (
        only("launch.launch_bound", case(show=fused, trace=idle_for_host(6.0), after=8.0)).share
        > 0.1
    )


def test_a_compiled_model_is_not_told_to_compile():
    run = show(config={"compile": [{"what": "Net"}]})
    one = case(show=run, trace=idle_for_host(6.0), after=8.0)
    assert str(only("launch.launch_bound", one).fix) == "cuda_graph"


def test_indexing_a_tensor_element_by_element_is_a_loop():
    window = host_of(("aten::select", 200, 20.0), ("aten::mul", 100, 20.0), ("aten::mm", 3, 900.0))
    finding = only("launch.python_loops", case("cpu", show=show("cpu"), trace=window, after=10.0))
    assert "200 iterations" in finding.why
    assert finding.share > 0.2
    assert finding.where[0].line == 56


def test_a_loop_takes_no_part_of_the_step_that_is_the_optimizers():
    window = host_of(("aten::select", 200, 20.0), ("aten::addcdiv_", 200, 50.0))
    phases = {"forward": 3.0, "backward": 5.0, "optimizer": 12.0}
    one = case("cpu", show=show("cpu", phases_ms=phases), trace=window, after=10.0)
    assert only("launch.python_loops", one).share <= 0.4


def stretches(**counts: int) -> SimpleNamespace:
    """Tasks whose host is so often in `aten::select` in each phase."""
    phases = [STEP_PHASES.index(phase) for phase, n in counts.items() for _ in range(n)]
    chain = SimpleNamespace(phase=np.array(phases), operator=np.zeros(len(phases), int))
    return SimpleNamespace(names=["aten::select"], host=chain)


def test_what_the_loader_and_the_optimizer_index_is_no_loop_of_the_programs():
    window = host_of(("aten::select", 200, 20.0), ("aten::mm", 3, 900.0))
    one = case("cpu", show=show("cpu"), trace=window, after=10.0)
    assert "200 iterations" in only("launch.python_loops", one).why
    one.model.tasks = stretches(data_wait=8, optimizer=8)
    assert findings_of("launch.python_loops", one) == []
    one.model.tasks = stretches(data_wait=4, optimizer=4, forward=8)
    assert "100 iterations" in only("launch.python_loops", one).why


def test_what_a_compiled_model_calls_is_no_loop_of_the_programs():
    window = host_of(("aten::select", 200, 20.0), ("aten::mm", 3, 900.0))
    run = show("cpu", config={"compile": [{"what": "Net"}]})
    one = case("cpu", show=run, trace=window, after=10.0)
    one.model.tasks = stretches(forward=8, backward=8)
    assert findings_of("launch.python_loops", one) == []
    one.model.tasks = stretches(other=8)
    assert "200 iterations" in only("launch.python_loops", one).why


def test_lines_that_launch_very_many_short_kernels_are_where_the_loop_is():
    window = idle_for_host(6.0) | {"critical_path": None}
    window["host"]["operators"] = operators(("aten::select", 300, 30.0))
    lines = [
        {"name": "train.py(33): loss", "count": 900, "total_ns": 10**6, "mean_ns": 1e3},
        {"name": "train.py(40): step", "count": 20, "total_ns": 10**7, "mean_ns": 5e5},
    ]
    run = show(timeline_stacks={"steps": 2, "by": {"module": [], "line": lines}, "idle_places": {}})
    finding = only("launch.python_loops", case(show=run, trace=window, after=12.0))
    assert [(p.file, p.line) for p in finding.where] == [("train.py", 33)]


def with_own_time(**own_ms: float) -> Document:
    """A run whose window with stacks has functions, by the ms of their own Python."""
    lines = [
        {"name": f"train.py({10 * n}): {name}", "count": 2, "self_ns": int(ms * 1e6),
         "with_calls_ns": 10**9, "total_ns": 10**9}
        for n, (name, ms) in enumerate(own_ms.items(), 1)
    ]  # fmt: skip
    stacks = {"steps": 2, "by": {"module": [], "line": []}, "idle_places": {}}
    phases = {"forward": 12.0, "backward": 5.0, "optimizer": 1.0}
    host = {"host": {"lines": lines}}
    return show("cpu", phases_host_ms=phases, timeline_stacks=stacks | host)


def test_without_a_device_the_loop_is_in_the_function_with_most_python_of_its_own():
    window = host_of(("aten::select", 200, 20.0), ("aten::mul", 100, 20.0), ("aten::mm", 3, 900.0))
    run = with_own_time(main=1.0, roughness=30.0, idle=0.0)
    finding = only("launch.python_loops", case("cpu", show=run, trace=window, after=10.0))
    assert [(p.file, p.line) for p in finding.where] == [("train.py", 20)]


def test_heavy_python_names_the_functions_it_passes_in():
    window = host_of(("aten::addmm", 20, 300.0), python_ms=8.0)
    run = with_own_time(main=1.0, tables=30.0, idle=0.0)
    finding = only("launch.python_heavy_forward", case("cpu", show=run, trace=window, after=12.0))
    assert [p.line for p in finding.where] == [20, 10]


def test_the_operators_of_a_transformer_are_no_loop():
    assert findings_of("launch.python_loops", of_recording("gpt_b4x1024_bf16_h200")) == []


def test_python_between_few_operators_is_heavy():
    window = host_of(("aten::addmm", 20, 300.0), python_ms=8.0)
    run = show("cpu", phases_host_ms={"forward": 12.0, "backward": 5.0, "optimizer": 1.0})
    finding = only("launch.python_heavy_forward", case("cpu", show=run, trace=window, after=12.0))
    assert finding.share == pytest.approx((1 - 12 / 20) / 0.9)
    assert finding.where[0].line == 56


def test_python_that_only_calls_operators_is_not():
    window = host_of(("aten::add", 900, 5.0), python_ms=4.0)
    run = show("cpu", phases_host_ms={"forward": 12.0, "backward": 5.0, "optimizer": 1.0})
    assert (
        findings_of("launch.python_heavy_forward", case("cpu", show=run, trace=window, after=15.0))
        == []
    )


def slow_optimizer(device: str, name: str = "AdamW", **flags: object) -> Document:
    optimizer = {"id": 0, "name": name, "parameters": 160, "foreach": None, "fused": None} | flags
    phases = {"data_wait": 0.1, "h2d": 0.0, "forward": 5.0, "backward": 9.0, "optimizer": 5.9}
    return show(device, phases_ms=phases, config={"optimizers": [optimizer]})


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_optimizer_that_is_not_fused(device):
    one = case(device, show=slow_optimizer(device), trace=trace(device), after=16.0)
    finding = only("launch.unfused_optimizer", one)
    assert str(finding.fix) == "fused_optimizer"
    assert finding.share == pytest.approx(5.9 / 20)
    assert finding.where[0].line == 59


@pytest.mark.parametrize(("others", "found"), [(700.0, 1), (900.0, 0), (1590.0, 0)])
def test_no_fused_optimizer_on_a_processor_whose_cores_others_use(others, found):
    busy = slow_optimizer("cpu") | {"host": show("cpu")["host"] | {"other_cpu_percent": others}}
    one = case("cpu", show=busy, trace=trace("cpu"), after=16.0)
    assert len(findings_of("launch.unfused_optimizer", one)) == found


def test_fusing_saves_the_share_of_the_optimizer_that_it_saves_in_recorded_steps():
    """Of 20 recorded ms 10 are saved: half of what the mean step's optimizer takes."""
    recorded = case("cpu", show=slow_optimizer("cpu"), trace=trace("cpu"), after=10.0)
    predicted = only("launch.unfused_optimizer", recorded).predicted
    assert predicted.step_ms == pytest.approx(20 - 5.9 / 2)
    assert not predicted.changes, "headroom must not replay what was not believed"


@pytest.mark.parametrize(
    "run",
    [
        slow_optimizer("cuda", fused=True),
        slow_optimizer("cuda", name="LBFGS"),
        show("cpu", config={"optimizers": [{"id": 0, "name": "SGD", "fused": None}]},
             memory={"owners": {"optimizer_state": 0}},
             phases_ms={"optimizer": 5.0}),
    ],
    ids=["fused", "no fused version", "plain SGD"],
)  # fmt: skip
def test_an_optimizer_that_cannot_be_fused_further(run):
    assert (
        findings_of("launch.unfused_optimizer", case(run["run"]["device"], show=run, after=16.0))
        == []
    )


def test_what_gains_nothing_in_the_replay_is_no_cause():
    one = case(show=slow_optimizer("cuda"), trace=trace(), after=20.0)
    assert findings_of("launch.unfused_optimizer", one) == []


def test_recompilations_take_their_part_of_the_run():
    counted = {"graphs": 8, "graph_breaks": 0, "break_reasons": [], "recompiles": 7}
    run = show(compile=counted, account_s={"compile": 40.0, "training": 60.0})
    finding = only("launch.recompiles", case(show=run))
    assert finding.scope == "run"
    assert str(finding.fix) == "compile=default,dynamic"
    assert finding.share == pytest.approx(35.0 / (66.45 - 2.0 + 40.0), rel=0.05)


def test_one_recompilation_for_changing_shapes_is_fine():
    counted = {"graphs": 2, "graph_breaks": 0, "break_reasons": [], "recompiles": 1}
    assert (
        findings_of(
            "launch.recompiles", case(show=show(compile=counted, account_s={"compile": 40.0}))
        )
        == []
    )


def test_graph_breaks_name_their_reason():
    counted = {"graphs": 4, "graph_breaks": 3, "break_reasons": ["Tensor.item() call"]}
    window = host_of(("aten::addmm", 20, 300.0), python_ms=6.0)
    one = case("cpu", show=show("cpu", compile=counted), trace=window, after=15.0)
    finding = only("launch.graph_breaks", one)
    assert "Tensor.item() call" in finding.why
    assert "4 graphs" in finding.title
    assert finding.share == pytest.approx(0.25 / 0.8)


def test_a_whole_graph_has_no_breaks():
    counted = {"graphs": 1, "graph_breaks": 0, "break_reasons": [], "recompiles": 0}
    one = case("cpu", show=show("cpu", compile=counted), trace=trace("cpu"), after=15.0)
    assert findings_of("launch.graph_breaks", one) == []


@pytest.mark.parametrize("name", LAUNCH)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_healthy_runs_have_none_of_these(name, device):
    assert findings_of(name, case(device, show=show(device), trace=trace(device), after=20.0)) == []
    assert findings_of(name, case(device, show=show(device))) == []


@pytest.mark.parametrize("name", LAUNCH)
def test_documents_with_nothing_in_them_raise_nothing(name):
    for device in ("cuda", "cpu"):
        assert findings_of(name, case(device)) == []
        assert findings_of(name, case(device, show={}, trace={})) == []


def test_the_same_recording_gives_the_same_findings():
    one = of_recording("gpt_b4x1024_bf16_h200")
    found = [findings_of(name, one) for name in LAUNCH]
    assert found == [findings_of(name, one) for name in LAUNCH]


OTHER = {"data_wait": 0.0, "forward": 4.0, "backward": 3.0, "optimizer": 0.5, "other": 12.5}


def code(function="get_batch", share=0.96, line=31, **changes):
    """Code in no phase, as sampled."""
    return {
        "function": function, "file": "/home/me/train.py", "line": line, "first_line": 30,
        "last_line": 35, "line_share": share / 2, "share": share, "called_at": 58, "calls": "",
        "works": {},
    } | changes  # fmt: skip


def in_no_phase(*codes, around=0.0, **changes):
    """A run on the CPU whose steps of 20 ms are 62.5% other, with what was sampled of them."""
    told = {"steps": 8, "samples": 300, "share": 0.6, "around": around, "code": list(codes)}
    usual = {
        "phases_ms": OTHER,
        "phases_host_ms": OTHER | {"wait": 0.0},
        "loaders": [],
        "other_time": told if codes else None,
    }
    return case("cpu", show("cpu", **(usual | changes)))


def test_code_in_no_phase_is_named_with_its_line():
    finding = only("launch.other_code", in_no_phase(code(), code(None, 0.04, 66)))
    assert finding.title == "60% of the step is get_batch()"
    assert "called at line 58" in finding.why
    assert "line 31" in finding.why
    assert finding.share == pytest.approx(0.6)
    assert [(place.file, place.line) for place in finding.where] == [("/home/me/train.py", 31)]
    assert "DataLoader with workers" in finding.advice
    assert finding.predicted is None


def test_lines_of_the_loop_have_no_function_and_vectorising_is_advised():
    alone = code(None, first_line=12, last_line=15, line=14, called_at=None)
    finding = only("launch.other_code", in_no_phase(alone))
    assert finding.title == "60% of the step is train.py:12–15"
    assert "Vectorise" in finding.advice
    assert "DataLoader" not in finding.advice


@pytest.mark.parametrize(
    ("work", "advised"),
    [("reading", "local disk"), ("decoding", "decode once"), ("augmenting", "whole batches")],
)
def test_advice_fits_what_the_code_does(work, advised):
    finding = only("launch.other_code", in_no_phase(code("next_item", works={work: 0.7})))
    assert advised in finding.advice
    assert "DataLoader" in finding.advice


def test_scattered_code_is_told_as_a_whole_with_its_largest_places():
    some = [code(f"part_{n}", 0.25, 10 * n) for n in range(1, 5)]
    finding = only("launch.other_code", in_no_phase(*some))
    assert finding.title == "62% of the step is code in no phase"
    assert [place.line for place in finding.where] == [10, 20, 30, 40]
    assert finding.share == pytest.approx(0.625)


def test_code_in_no_phase_that_was_not_sampled_is_said_with_what_would_tell():
    one = in_no_phase()
    finding = only("launch.other_code", one)
    assert "run --python" in finding.advice
    assert "not sampled" in finding.why
    assert finding.kind is ChangeKind.NONE
    sampled = [
        {"file": f, "line": n, "function": "f", "own_s": 1.0, "cumulative_s": 1.0}
        for f, n in (("/usr/lib/python3.11/random.py", 5), ("/home/me/train.py", 31))
    ]
    hot = {"sampled_s": 2.0, "waiting_s": 0.0, "observer_share": 0.0, "functions": [],
           "lines": sampled, "threads": []}  # fmt: skip
    (place,) = only("launch.other_code", in_no_phase(host_code=hot)).where
    assert place.line == 31


def test_torchs_own_work_around_the_phases_is_not_blamed_on_the_program():
    finding = only("launch.other_code", in_no_phase(code(share=0.1), around=0.9))
    assert "torch's own work" in finding.why
    assert finding.kind is ChangeKind.NONE
    assert finding.where == ()


def test_a_fifth_of_the_step_may_be_in_no_phase():
    small = OTHER | {"other": 3.9, "forward": 12.6}
    assert findings_of("launch.other_code", in_no_phase(code(), phases_ms=small)) == []


def test_waits_at_known_lines_are_no_code_in_no_phase():
    host = OTHER | {"other": 1.0, "wait": 11.5}
    waits = [sync("item", 11.5 * 200)]
    known = in_no_phase(code(), phases_host_ms=host, syncs=waits)
    assert findings_of("launch.other_code", known) == []
    unknown = in_no_phase(code(), phases_host_ms=host, syncs=[])
    assert only("launch.other_code", unknown).share > 0.5


def test_what_names_nothing_comes_last_but_the_screen_does_not_say_that_nothing_was_found():
    from stepscope.diagnose.findings import diagnose

    found = diagnose(in_no_phase()).findings
    assert [one.id for one in found][-1] == "launch.other_code"
