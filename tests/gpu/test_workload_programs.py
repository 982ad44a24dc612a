"""The workload programs on a CUDA device: measured there, with fixes, and out of its memory."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

STEPSCOPE = ("stepscope.cli.main", "run", "--quiet")


@pytest.fixture(scope="module", autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def execute(*words):
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def measured(folder, mode, *arguments, fixes=(), device="cuda"):
    """(what the program has measured, the names of fixes that applied)."""
    path = folder / "measured.json"
    path.unlink(missing_ok=True)
    asked = [word for fix in fixes for word in ("--fix", fix)]
    observed = [*STEPSCOPE, "--out", folder / "run", "--force", *asked, "-m"] if fixes else []
    program = (f"stepscope.workloads.{mode}", *arguments, "--device", device)
    done = execute(*observed, *program, "--measure", path)
    assert done.returncode == 0, done.stderr
    applied = set()
    if fixes:
        facts = map(json.loads, (folder / "run" / "facts.jsonl").read_text().splitlines())
        applied = {fact["name"] for fact in facts if fact.get("state") == "applied"}
    return json.loads(path.read_text()), applied


def names(fixes):
    return {fix.partition("=")[0] for fix in fixes}


TRAINED = ("--model", "simple_cnn", "--batch", "32", "--steps", "60", "--seed", "3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("trained"), "train", *TRAINED)[0]


def test_steps_are_timed_by_the_device(trained):
    assert trained["clock"] == "cuda events"
    assert trained["device"] == "cuda"
    assert trained["device_name"]
    assert trained["warmup"]["calls"] + trained["calls"] == 60
    assert len(trained["series_ms"]) == trained["calls"]
    assert sum(trained["series_ms"]) == pytest.approx(1e3 * trained["elapsed_s"], rel=0.1)
    assert trained["warmup"]["first_call_s"] > trained["elapsed_s"] / trained["calls"]


def test_memory_and_arithmetic_are_those_of_the_device(trained):
    assert 1 << 20 < trained["peak_memory_bytes"] <= trained["reserved_memory_bytes"]
    assert trained["arithmetic"] == "tf32"  # as torch has it for convolutions


def test_the_first_losses_are_those_of_the_cpu(trained, tmp_path):
    given = ("--model", "simple_cnn", "--batch", "32", "--steps", "5", "--seed", "3")
    on_cpu, _ = measured(tmp_path, "train", *given, device="cpu")
    for (_, ours), (_, theirs) in zip(trained["losses"], on_cpu["losses"], strict=False):
        assert ours == pytest.approx(theirs, rel=0.02)


def test_fixes_of_loading_and_arithmetic_take_hold(tmp_path):
    fixes = ("workers=2", "pin", "prefetch", "amp=bf16", "channels_last", "fused_optimizer")
    found, applied = measured(
        tmp_path, "train", *TRAINED, "--data", "synthetic", "--samples", "512", fixes=fixes
    )
    assert applied == names(fixes)
    assert found["arithmetic"] == "bf16"
    assert found["steps"] == 60
    assert found["losses"][-1][1] < found["losses"][0][1]


def test_whole_steps_are_replayed_as_graphs_and_the_losses_stay(trained, tmp_path):
    fixes = ("cuda_graph", "fused_optimizer")
    found, applied = measured(tmp_path, "train", *TRAINED, fixes=fixes)
    assert applied == names(fixes)
    for (_, ours), (_, theirs) in zip(found["losses"][:5], trained["losses"][:5], strict=True):
        assert ours == pytest.approx(theirs, rel=0.02)


def test_calls_are_timed_back_to_back_and_one_by_one(tmp_path):
    given = ("--model", "simple_cnn", "--batch", "64", "--seconds", "0.5")
    found, _ = measured(tmp_path, "infer", *given)
    assert found["clock"] == "cuda events"
    assert found["elapsed_s"] == pytest.approx(0.5, rel=0.3)
    mean_ms = sum(found["series_ms"]) / len(found["series_ms"])
    assert mean_ms > 0.8 * 1e3 * found["elapsed_s"] / found["calls"]


def test_strict_arithmetic_is_seen(tmp_path):
    given = ("--model", "simple_cnn", "--batch", "8", "--steps", "5")
    found, applied = measured(tmp_path, "infer", *given, fixes=("tf32=off",))
    assert applied == {"tf32"}
    assert found["arithmetic"] == "fp32"


@pytest.mark.slow
def test_a_compiled_model_is_timed_apart_from_compiling(tmp_path):
    given = ("--model", "simple_cnn", "--batch", "64", "--seconds", "0.5")
    fixes = ("amp=bf16", "compile=reduce-overhead")
    found, applied = measured(tmp_path, "infer", *given, fixes=fixes)
    assert applied == names(fixes)
    assert found["first_calls_extra_s"] > found["elapsed_s"]
    assert found["arithmetic"] == "bf16"


def test_tokens_are_timed_by_the_device(tmp_path):
    given = ("--model", "gpt:tiny", "--batch", "2", "--prompt", "16", "--new-tokens", "16")
    found, _ = measured(tmp_path, "generate", *given, "--seconds", "0.5")
    assert found["clock"] == "cuda events"
    assert len(found["first_token_ms"]) == len(found["token_ms"]) == found["calls"]
    whole = [a + 15 * b for a, b in zip(found["first_token_ms"], found["token_ms"], strict=True)]
    assert sum(whole) == pytest.approx(sum(found["series_ms"]), rel=0.1)


@pytest.mark.slow
def test_a_compiled_decoder_generates(tmp_path):
    given = ("--model", "gpt:tiny", "--batch", "2", "--prompt", "16", "--new-tokens", "16")
    fixes = ("amp=bf16", "compile=reduce-overhead")
    found, applied = measured(tmp_path, "generate", *given, "--seconds", "0.5", fixes=fixes)
    assert applied == names(fixes)
    assert found["error"] is None


def test_running_out_of_the_devices_memory_is_a_result(tmp_path):
    path = tmp_path / "measured.json"
    done = execute(
        *("stepscope.workloads.train", "--model", "simple_cnn", "--size", "224", "--batch", "512"),
        *("--memory-limit-gib", "1", "--device", "cuda", "--measure", path),
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[-1].startswith("train: out of memory")
    found = json.loads(path.read_text())
    assert found["error"]["kind"] == "out_of_memory"
    assert found["reserved_memory_bytes"] < 1.1 * 2**30
