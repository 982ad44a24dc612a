"""The heaviest operators and kernels of a step: from recordings, with counters and without."""

import gzip
import json
import os
import stat
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import asdict, replace
from plain import TRACES
from plain_json import in_json
from recordings import recorded

import stepscope
from stepscope.analyze.timeline.roofline.ceilings import Ceilings
from stepscope.bench import kernel_recording
from stepscope.bench.kernel_recording import (
    KernelSubject,
    count_kernels,
    counters_command,
    kernels_notes,
    kernels_result,
    record_kernels,
    run_ncu,
)
from stepscope.bench.kernel_study import (
    compare_with_ceilings,
    heaviest_kernels,
    host_rows,
    study_kernels,
)
from stepscope.bench.measure_point import environment_with
from stepscope.bench.results import FixReport, KernelsResult, NcuUse
from stepscope.cli.main import main
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import DeviceKind
from stepscope.trace.nsight.counter_join import kernel_base_name
from stepscope.trace.nsight.counters import METRICS, KernelCounters

RESNET50, STEPS = "resnet50_b64_h200", 6
OP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


@cache
def found():
    return compare_with_ceilings(recorded(RESNET50), steps=STEPS)


@cache
def studied():
    return in_json(study_kernels(found(), STEPS, 10))


def row(rows, name):
    return next(one for one in rows if one["name"] == name)


def test_operators_are_per_step_and_add_up_to_the_devices_time():
    whole = in_json(study_kernels(found(), STEPS, 1000))
    device = recorded(RESNET50).device
    assert whole["work_ms"] == pytest.approx(device.duration.sum() / STEPS / 1e6)
    assert sum(one["share"] for one in whole["operators"]) == pytest.approx(1)
    assert whole["launched"] == np.count_nonzero(device.kind == DeviceKind.KERNEL) / STEPS
    assert len(whole["operators"]) == whole["operators_in_all"]
    times = [one["time_ms"] for one in whole["operators"]]
    assert times == sorted(times, reverse=True)


def test_an_operator_has_its_flops_its_rate_and_its_ceiling():
    forward = row(studied()["operators"], "aten::cudnn_convolution")
    assert forward["dtype"] == "tf32"
    assert forward["calls"] == 53
    assert forward["flops"] / 64 == pytest.approx(8.17e9, rel=0.01)
    assert forward["flops_per_s"] == pytest.approx(forward["flops"] / forward["time_ms"] * 1e3)
    assert 0 < forward["ceiling_share"] < 1
    assert forward["counted"] is None
    batch_norm = row(studied()["operators"], "aten::cudnn_batch_norm_backward")
    assert batch_norm["bound"] == "memory"


def test_what_no_formula_knows_is_listed_without_numbers():
    copy = row(studied()["operators"], "Memcpy HtoD (Pinned -> Device)")
    assert copy["time_ms"] > 0
    assert copy["flops"] is copy["bound"] is copy["ceiling_share"] is None
    assert studied()["known_share"] == pytest.approx(0.975, abs=0.01)


def test_kernels_name_the_operator_that_launched_them():
    heaviest = studied()["kernels"][0]
    assert "bn_bw_1C11_kernel_new" in heaviest["name"]
    assert heaviest["operator"] == "aten::cudnn_batch_norm_backward"
    assert heaviest["runs"] == 11


def test_the_names_to_count_are_those_of_the_heaviest_calls_and_kernels():
    names = heaviest_kernels(found(), 4)
    assert {"bn_bw_1C11_kernel_new", "vectorized_elementwise_kernel"} <= names
    assert len(names) < len(heaviest_kernels(found(), 40))
    assert not heaviest_kernels(compare_with_ceilings(recorded("cpu_only_rank34.pt.trace")), 4)


@cache
def with_counters():
    """As if ncu had counted one step: two million bytes and 3·10⁹ operations in each kernel."""
    timeline = recorded(RESNET50)
    device, names = timeline.device, heaviest_kernels(found(), 8)
    counters = []
    metrics = {"dram__bytes_read.sum": 1.5e6, "dram__bytes_write.sum": 0.5e6}
    metrics |= {OP.format("fadd"): 1e9, OP.format("fmul"): 0.0, OP.format("ffma"): 0.0}
    metrics |= {"sm__ops_path_tensor_src_tf32_dst_fp32.sum": 2e9}
    launched = timeline.host.start[device.launch]
    for event in np.argsort(launched, kind="stable").tolist():
        name = timeline.name_of(int(device.name[event]))
        if device.kind[event] == DeviceKind.KERNEL and kernel_base_name(name) in names:
            size = timeline.geometries[device.geometry[event]]
            one = KernelCounters(name, len(counters), "7", size.grid, size.block, None, metrics)
            counters.append(one)
    first = counters[: len(counters) // STEPS]
    return compare_with_ceilings(timeline, first, steps=STEPS)


def test_counters_stand_beside_the_model_of_the_same_calls():
    rows = in_json(study_kernels(with_counters(), STEPS, 10))["operators"]
    add = row(rows, "aten::add_")
    told = add["counted"]
    assert told["time_share"] == pytest.approx(1)
    assert told["bytes"] == told["calls"] * 2e6
    assert told["flops"] == told["calls"] * 3e9
    assert told["bytes_ratio"] == pytest.approx(told["bytes"] / told["model_bytes"])
    assert told["flops_error"] == pytest.approx(told["model_flops"] / told["flops"] - 1)
    assert add["flops"] == row(studied()["operators"], "aten::add_")["flops"]
    assert add["flops_per_s"] == pytest.approx(32 * 3e9 / add["time_ms"] * 1e3)


def test_kernels_that_were_counted_have_rates_of_their_own():
    kernels = in_json(study_kernels(with_counters(), STEPS, 10))["kernels"]
    told = kernels[0]["counted"]
    assert told["bytes"] == 2e6
    each_s = kernels[0]["time_ms"] / kernels[0]["runs"] / 1e3
    assert told["bytes_per_s"] == pytest.approx(2e6 / each_s)
    assert told["flops_per_s"] == pytest.approx(3e9 / each_s)


def test_a_study_is_json_and_says_how_much_was_counted():
    whole = in_json(study_kernels(with_counters(), STEPS, 10))
    json.dumps(whole, allow_nan=False)
    assert 0 < whole["counted"] < whole["launched"]
    assert whole["join"]["kernels_without"] > 0
    assert whole["ceilings"]["source"] == "datasheet"


def test_only_these_kernels_are_counted_and_with_few_counters(tmp_path):
    command = counters_command(tmp_path / "log.csv", r"^(Kernel2|a\+b)$")
    assert command[0] == "ncu"
    assert command[command.index("--kernel-name") + 1] == r"regex:^(Kernel2|a\+b)$"
    assert command[command.index("--clock-control") + 1] == "none"
    metrics = command[command.index("--metrics") + 1].split(",")
    assert set(metrics) < set(METRICS)
    assert not any("_op_h" in name for name in metrics)
    more = counters_command(tmp_path / "log.csv", half=True)
    assert "--kernel-name" not in more
    assert any("_op_h" in name for name in more[more.index("--metrics") + 1].split(","))


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A program in the place of ncu, which does what it is given; $log is its --log-file."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")

    def install(script):
        path = tools / "ncu"
        log = 'while [ "$1" != --log-file ]; do shift; done; log="$2"\n'
        path.write_text(f"#!/bin/sh\n{log}{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return install


def counting(tmp_path, timeout_s=20.0):
    return run_ncu(["true"], dict(os.environ), ["Kernel2"], tmp_path, timeout_s)


def test_counters_are_read_from_what_ncu_wrote(tmp_path, ncu):
    table = tmp_path / "real.csv"
    table.write_bytes(gzip.decompress((TRACES / "h200_conv_gemm_softmax_raw.csv.gz").read_bytes()))
    ncu(f'cp "{table}" "$log"')
    told = counting(tmp_path)
    assert told.why is None
    assert len(told.counters) > 3
    assert told.counters[0].dram_bytes > 0


def test_ncu_is_asked_for_kernels_of_exactly_these_names(tmp_path, monkeypatch):
    asked = []

    def run_logged(command, *_):
        asked.extend(command)
        return SimpleNamespace(timed_out=True)

    monkeypatch.setattr(kernel_recording, "run_logged", run_logged)
    run_ncu(["true"], {}, ["a+b", "Kernel2", "a+b"], tmp_path, 20.0)
    assert asked[asked.index("--kernel-name") + 1] == r"regex:^(Kernel2|a\+b)$"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - no permission" > "$log"; exit 1',
            "no permission to read GPU counters (ERR_NVGPUCTRPERM): run as root or ask"
            " your admin to enable them",
        ),
        ('echo "==ERROR== no such file"; exit 1', "ncu: no such file"),
        ("sleep 20", "ncu took longer than 0 s: --timeout gives it more"),
    ],
)
def test_without_counters_it_is_said_why(tmp_path, ncu, script, why):
    ncu(script)
    told = counting(tmp_path, 0.3 if "sleep" in script else 20.0)
    assert told.counters == []
    assert told.why == why


def test_ncu_is_only_run_where_it_is_and_there_are_kernels(tmp_path, monkeypatch):
    subject = KernelSubject("mlp", "train", 4, "cuda")
    said = []
    assert (
        count_kernels(subject, [], tmp_path, 1.0, said.append).why
        == "there are no kernels on a CPU"
    )
    monkeypatch.setenv("PATH", "")
    assert count_kernels(subject, ["k"], tmp_path, 1.0, said.append).why == "ncu is not on the PATH"
    assert said == []


def test_notes_say_where_the_numbers_come_from():
    about = {"model": "mlp", "mode": "train", "batch": 4, "device": "cuda"}
    unused = NcuUse(False, "ncu is not on the PATH", 0.0)
    base = KernelsResult(**about, **asdict(study_kernels(found(), STEPS, 10)), ncu=unused)
    assert kernels_notes(base) == [
        "FLOPs and bytes come from operator shapes alone: ncu is not on the PATH",
        "ceilings from the datasheet: stepscope doctor measures this device's own",
    ]
    fix = FixReport(name="pin", state="not applicable", reasons=("there is no DataLoader",))
    others = kernels_notes(replace(base, ncu=NcuUse(True, None, 31.0), applied=(fix,)))
    assert others[0].startswith("counted: 0 of 737 kernels per step, in 31 s")
    assert others[-1] == "fix pin: not applicable: there is no DataLoader"
    assert "no kernels on a CPU" in kernels_notes(replace(base, on="host", ceilings=None))[0]


def test_the_document_has_the_shape_of_all_benchmarks():
    from stepscope.bench.kernel_recording import NcuCount

    subject = KernelSubject("resnet50", "train", 64, "cuda", ("tf32",), {"size": 224})
    measured = study_kernels(found(), STEPS, 10)
    whole = kernels_result(subject, measured, NcuCount([], "no ncu", 0.0), (), "command", "started")
    whole = json.loads(whole.json_text())
    assert whole["schema"] == "stepscope.bench/1"
    assert whole["points"] == []
    assert whole["request"]["models"] == ["resnet50"]
    assert whole["kernels"]["fixes"] == ["tf32"]
    assert whole["kernels"]["ncu"] == {"used": False, "why_not": "no ncu", "seconds": 0.0}
    json.dumps(whole, allow_nan=False)


def test_a_subject_is_a_command_line_and_fixes_bring_the_probe(tmp_path):
    subject = KernelSubject("gpt:tiny", "infer", 2, "cpu", (), {"length": 16})
    words = " ".join(subject.step_command("--steps", "3"))
    assert "-m stepscope.workloads.one_step --mode infer --model gpt:tiny --batch 2" in words
    assert words.endswith("--device cpu --length 16 --steps 3")
    assert "STEPSCOPE_PROBE" not in environment_with(subject.fixes, tmp_path)
    fixed = environment_with(("channels_last",), tmp_path)
    assert json.loads(fixed["STEPSCOPE_PROBE"])["fixes"] == ["channels_last"]


def test_a_program_that_refuses_or_fails_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        KernelSubject, "step_command", lambda *_: ["sh", "-c", "echo no model >&2; exit 2"]
    )
    with pytest.raises(UsageError, match=r"^no model$"):
        record_kernels(KernelSubject("x", "train", 1, "cpu"), tmp_path / "a", 20.0)
    monkeypatch.setattr(
        KernelSubject, "step_command", lambda *_: ["sh", "-c", "echo Boom: x; exit 1"]
    )
    with pytest.raises(StepscopeError, match=r"^Boom: x$"):
        record_kernels(KernelSubject("x", "train", 1, "cpu"), tmp_path / "b", 20.0)
    monkeypatch.setattr(KernelSubject, "step_command", lambda *_: ["sleep", "20"])
    with pytest.raises(StepscopeError, match="not recorded within 0 s"):
        record_kernels(KernelSubject("x", "train", 1, "cpu"), tmp_path / "c", 0.2)


def test_operators_of_a_cpu_own_the_time_of_what_they_call():
    """On a trace with a device the same rows can be made: host time adds up the same way."""
    timeline, work = found().timeline, found().work
    limits = Ceilings({"fp32": 1e12}, 1e11, "measured")
    rows = in_json(host_rows(timeline, work, limits, STEPS))
    convolution = row(rows, "aten::cudnn_convolution")
    assert convolution["calls"] == 53
    assert convolution["flops"] / 64 == pytest.approx(8.17e9, rel=0.01)
    assert convolution["bound"] == "compute"
    assert sum(one["share"] for one in rows) == pytest.approx(1)
    names = [one["name"] for one in rows]
    assert "aten::conv2d" in names
    assert not any(name.startswith("autograd::engine") for name in names)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(stepscope.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["bench", "kernels", *arguments])
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["resnet81"], "no workload named resnet81: did you mean resnet18?"),
        (["mlp", "--fix", "nothing"], "no fix named nothing"),
        (["mlp", "--batch", "0"], "0 is not in the range"),
        (["mlp", "--device", "cpu", "--fix", "cuda_graph"], "--fix cuda_graph needs cuda"),
        (["mlp", "--markdown", "gone/x.md"], "cannot write gone/x.md"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, text):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert text in err


@pytest.mark.slow
@pytest.mark.launches
def test_the_operators_of_a_small_model_on_the_cpu(run, tmp_path):
    pytest.importorskip("torch")
    code, out, err = run(
        "mlp", "--device", "cpu", "--batch", "4", "--json", "--markdown", "table.md"
    )
    assert code == 0, err
    whole = json.loads(out)["kernels"]
    assert whole["on"] == "host"
    assert whole["ncu"] == {
        "used": False,
        "why_not": "there are no kernels on a CPU",
        "seconds": 0.0,
    }
    products = [one for one in whole["operators"] if one["name"] in ("aten::addmm", "aten::mm")]
    assert products
    assert all(one["flops"] > 0 and one["time_ms"] > 0 for one in products)
    assert whole["kernels"] == []
    assert "| aten::" in (tmp_path / "table.md").read_text()
