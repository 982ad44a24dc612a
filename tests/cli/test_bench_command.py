"""`stepscope bench`: what it refuses, what it hands out, how it is stopped and goes on."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from measured import failure, record

from stepscope.bench import measure_point
from stepscope.cli.main import main
from stepscope.hardware.ceiling_cache import Ceiling, DeviceCeilings, save_ceilings
from stepscope.hardware.ceilings import device_key

STEPSCOPE = [sys.executable, "-m", "stepscope.cli.main"]


@pytest.fixture
def bench(capsys, tmp_path, monkeypatch):
    """Runs `stepscope bench` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    keep_ceilings()

    def bench(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["bench", *arguments])
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return bench


def keep_ceilings():
    """As if they had been measured here before."""
    found = {"matmul_fp32_tflops": Ceiling(2.0, 0.01)}
    save_ceilings(DeviceCeilings(key=device_key("cpu"), ceilings=found))


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the processes: every point is measured by hand, as `made` says."""
    seen = []

    def measured(made=record):
        def measure(point, folder, timeout_s):
            seen.append(point)
            found = made(point)
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setattr(measure_point, "measure", measure)
        return seen

    return measured


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("stepscope.bench.build_request.why_no_cuda", lambda: "no GPU is visible")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a model"),
        (["resnet19"], "did you mean resnet18"),
        (["mlp", "--batch", "0"], "use whole numbers of 1 or more"),
        (["mlp", "--batch", "4,x"], "--batch 4,x"),
        (["mlp", "--batch", "-4"], "--batch -4"),
        (["mlp", "--mode", "learn"], "train, infer, generate"),
        (["mlp", "--mode", "generate"], "mlp has no mode generate: it has train, infer"),
        (["mlp", "--device", "tpu"], "cpu, cuda"),
        (["mlp", "--device", "cuda"], "no CUDA device: no GPU is visible; use --device cpu"),
        (["mlp", "--fix", "ampp"], "did you mean amp"),
        (["mlp", "--fix", "cuda_graph"], "needs cuda; for cpu there are"),
        (["mlp", "--fix", "amp=bf16", "--ablate", "amp,pin"], "leave out --fix"),
        (["mlp", "--ablate", "amp=bf16"], "two fixes"),
        (["mlp", "--prompt", "8"], "--prompt goes with --mode generate only"),
        (["mlp", "--data", "imagenet"], "synthetic, resident, cifar10"),
        (["mlp", "--data", "images"], "images:FOLDER"),
        (["mlp", "--rounds", "0"], "--rounds"),
        (["mlp", "--study", "everything"], "cpu-gpu"),
        (["mlp", "--study", "cpu-gpu"], "needs a GPU: no GPU is visible"),
        (["nowhere.py:model"], "nowhere.py"),
        (["mlp", "--csv", "no/such/folder.csv"], "folder that exists"),
    ],
)
def test_bad_input_is_one_line_that_says_what_is_possible(bench, no_gpu, measured, arguments, says):
    seen = measured()
    code, out, err = bench(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert seen == []
    assert not Path(".stepscope").exists()


def test_data_that_is_not_there_is_bad_input_and_leaves_nothing(bench, no_gpu, measured):
    Path("empty").mkdir()
    said = "no CIFAR-10 in empty: --data cifar10:FOLDER"
    measured(lambda point: failure(point, exit_code=2, why=said))
    code, out, err = bench("mlp", "--data", "cifar10:empty")
    assert (code, out) == (2, "")
    assert err == f"stepscope: {said}\n"
    assert list(Path(".stepscope").glob("bench-*")) == []


def test_the_list_names_every_model_in_80_columns(bench):
    from stepscope.workloads.catalogue import WORKLOADS

    code, out, err = bench("--list")
    assert (code, err) == (0, "")
    first = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert first >= set(WORKLOADS)
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(bench("--list", "--json")[1])
    assert [one["name"] for one in found] == list(WORKLOADS)


def test_help_tells_of_the_other_benchmarks(bench):
    code, out, _ = bench("--help")
    assert code == 0
    assert "bench loader --help" in out
    assert "bench kernels --help" in out


@pytest.mark.parametrize("name", ["loader", "kernels"])
def test_the_other_benchmarks_have_their_own_help(bench, name):
    code, out, _ = bench(name, "--help")
    assert code == 0
    assert f"stepscope bench {name}" in out


def test_a_grid_is_handed_out_as_json_csv_and_markdown(bench, no_gpu, measured):
    seen = measured()
    arguments = ["mlp", "--batch", "4,8", "--rounds", "2", "--fix", "none", "--fix", "amp=bf16"]
    code, out, err = bench(*arguments, "--json", "--csv", "a.csv", "--markdown", "a.md")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == "stepscope.bench/1"
    assert [(p["batch"], p["variant"]) for p in found["points"]] == [
        *((4, "none"), (4, "amp=bf16"), (8, "none"), (8, "amp=bf16")),
    ]
    assert len(seen) == 8
    assert all(p["mfu"] is not None and p["status"] == "ok" for p in found["points"])
    assert found["command"].startswith("stepscope bench mlp --batch 4,8")
    with open("a.csv") as file:
        assert [row["batch"] for row in csv.DictReader(file)] == ["4", "4", "8", "8"]
    assert "mlp" in Path("a.md").read_text()
    (folder,) = Path(".stepscope").glob("bench-*")
    assert json.loads((folder / "bench.json").read_text()) == found
    assert err.splitlines()[0].startswith("1/8  mlp train batch 4 cpu none: ")


def test_a_grid_is_shown_on_the_screen(bench, no_gpu, measured):
    measured()
    code, out, _ = bench("mlp", "--mode", "train,infer", "--rounds", "1")
    assert code == 0
    assert "samples/s" in out


def test_a_grid_in_which_nothing_worked_is_shown_and_ends_with_1(bench, no_gpu, measured):
    measured(lambda point: failure(point, status="out_of_memory"))
    code, out, err = bench("mlp")
    assert code == 1
    assert "out of memory" in out
    assert "out of memory: it broke" in err


def test_samples_lie_on_the_device_unless_loading_or_learning_is_asked_about(bench, measured):
    seen = measured()
    bench("mlp", "--rounds", "1", "--device", "cpu")
    bench("mlp", "--rounds", "1", "--device", "cpu", "--fix", "workers=2")
    bench("mlp", "--rounds", "1", "--device", "cpu", "--target-score", "0.9")
    bench("mlp", "--rounds", "1", "--device", "cpu", "--mode", "infer")
    found = [dict(point.settings).get("data") for point in seen]
    assert found == ["resident", "synthetic", "synthetic", None]


def test_options_may_stand_in_pyproject(bench, measured):
    seen = measured()
    Path("pyproject.toml").write_text('[tool.stepscope.bench]\nrounds = 1\nbatch = "2"\n')
    assert bench("mlp", "--device", "cpu")[0] == 0
    assert [point.batch for point in seen] == [2]


def test_an_interrupted_grid_says_how_to_go_on_and_does(bench, no_gpu, measured):
    arguments = ["mlp", "--batch", "4,8", "--rounds", "1", "--force", "--out", "there"]
    measured(lambda point: record(point) if point.batch == 4 else KeyboardInterrupt())
    code, out, err = bench(*arguments)
    assert (code, out) == (130, "")
    last = err.splitlines()[-1]
    assert "1 measurement kept" in last
    again = last.partition("stepscope bench ")[2].split()
    assert again == ["mlp", "--batch", "4,8", "--rounds", "1", "--out", "there"]

    seen = measured()
    seen.clear()
    code, out, err = bench(*again)
    assert code == 0
    assert [point.batch for point in seen] == [8]
    assert "1 measured before" in err


def test_another_request_for_the_same_folder_is_refused(bench, no_gpu, measured):
    seen = measured()
    bench("mlp", "--rounds", "1", "--out", "there")
    code, _, err = bench("mlp", "--rounds", "2", "--out", "there")
    assert code == 2
    assert "rounds: 1, now 2" in err
    assert bench("mlp", "--rounds", "2", "--out", "there", "--force")[0] == 0
    assert len(seen) == 3


def test_the_command_line_imports_no_torch():
    code = (
        "import sys; sys.argv = ['stepscope']; from stepscope.cli.main import stepscope as s\n"
        "s.main(['bench', '--list'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.launches
def test_a_real_model_is_measured_with_a_fix(bench):
    code, out, err = bench(
        *("mlp", "--mode", "infer", "--batch", "4", "--device", "cpu", "--rounds", "1"),
        *("--seconds", "0.2", "--fix", "amp=bf16", "--json"),
    )
    assert code == 0, err
    (point,) = json.loads(out)["points"]
    assert (point["status"], point["not_applied"]) == ("ok", [])
    assert point["samples_per_s"] > 0
    assert point["p50_ms"] <= point["p95_ms"] <= point["p99_ms"]
    assert point["arithmetic"] == "bf16"
    assert point["peak_memory_bytes"] > 1 << 20
    assert point["flops_per_sample"] > 1e5


@pytest.mark.slow
def test_a_real_grid_killed_in_the_middle_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    keep_ceilings()
    grid = ["bench", "mlp", "--mode", "train,infer", "--batch", "4,8", "--device", "cpu"]
    grid += ["--rounds", "1", "--seconds", "0.3", "--fix", "none", "--fix", "amp=bf16"]
    command = [*STEPSCOPE, *grid, "--json", "--out", "out"]
    records = tmp_path / "out" / "records.jsonl"
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    _until(lambda: records.exists() and records.read_bytes().count(b"\n") >= 2)
    parent.kill()
    parent.wait()
    finished = records.read_bytes()
    finished = finished[: finished.rfind(b"\n") + 1]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert records.read_bytes().startswith(finished)
    found = [json.loads(line) for line in records.read_text().splitlines()]
    keys = [(one["key"], one["round"]) for one in found]
    assert len(keys) == len(set(keys)) == 8
    points = json.loads(done.stdout)["points"]
    assert {point["status"] for point in points} == {"ok"}
    assert {point["mode"] for point in points} == {"train", "infer"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_grid_that_is_told_to_stop_leaves_no_process_behind(tmp_path, number, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    keep_ceilings()
    grid = ["bench", "mlp", "--mode", "infer", "--device", "cpu", "--seconds", "60"]
    command = [*STEPSCOPE, *grid, "--out", str(tmp_path / "out")]
    parent = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    _until(lambda: (tmp_path / "out" / "processes" / "0001" / "samples.npy").exists())
    assert len(_processes_of(tmp_path)) == 2
    os.kill(parent.pid, number)
    _, said = parent.communicate(timeout=30)
    assert parent.returncode == 130
    assert "Resume with: stepscope bench mlp" in said
    assert _processes_of(tmp_path) == []


def _processes_of(folder):
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if str(folder) in " ".join(one.info["cmdline"] or ())]


def _until(true, seconds=120.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
