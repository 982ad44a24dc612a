"""`stepscope doctor`, with measuring stubbed."""

import io
import json
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from stepscope.cli.doctor import doctor
from stepscope.hardware import ceilings, machine
from stepscope.hardware.ceiling_cache import Ceiling, DeviceCeilings, cache_file
from stepscope.record.errors import MissingExtra
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.machine import machine_story

NAMES = {
    "matmul_fp32_tflops": 51.2,
    "matmul_tf32_tflops": 408.0,
    "matmul_fp16_tflops": 812.0,
    "matmul_bf16_tflops": 798.0,
    "memory_gb_per_s": 4305.0,
    "h2d_pinned_gb_per_s": 55.1,
    "h2d_pageable_gb_per_s": 18.4,
    "d2h_pinned_gb_per_s": 54.0,
    "launch_us": 4.1,
}
GPU = {
    "name": "NVIDIA RTX 6000 Ada Generation",
    "uuid": "GPU-1",
    "memory_bytes": 48 << 30,
    "driver": "580.95",
    "compute_capability": "8.9",
    "power_limit_w": 300.0,
    "pcie_generation": 1,
    "pcie_width": 16,
    "pcie_generation_max": 4,
    "pcie_width_max": 16,
    "numa_node": 0,
    "cpu_affinity": "0-31",
    "mig": False,
    "energy_counter": True,
    "processes": 0,
}


class Stub:
    """Stands in for `measure`; counts its calls."""

    calls = 0

    def __call__(self, device, key, listener=None):
        self.calls += 1
        names = ["launch_us", "memory_gb_per_s"]
        listener(ceilings.Plan(names, "A Device", "2.13.0", 2, 0.0))
        entry = Ceiling(4.1, 0.02, repeats=9, size=1000)
        listener(ceilings.Measured("launch_us", entry))
        listener(ceilings.Failed("memory_gb_per_s", "out of memory"))
        return DeviceCeilings(
            key=key,
            device="A Device",
            measured_at="2026-11-15T10:00:00+00:00",
            ceilings={"launch_us": entry},
            failed={"memory_gb_per_s": "out of memory"},
        )


@pytest.fixture
def stub(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    stub = Stub()
    monkeypatch.setattr(ceilings, "measure_ceilings", stub)
    return stub


def run(*arguments):
    result = CliRunner().invoke(doctor, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_the_screen_has_its_three_parts_and_fits(stub):
    result = run()
    assert result.exit_code == 0
    for part in (
        "This machine",
        "What stepscope can measure here",
        "Ceilings measured on A Device",
    ):
        assert part in result.stdout
    assert "4.10 µs" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_progress_goes_to_stderr_in_plain_lines(stub):
    result = run()
    assert "operator call, smallest: 4.10 µs" in result.stderr
    assert "memory, read + write: out of memory" in result.stderr
    assert "\x1b" not in result.stderr


def test_the_second_time_comes_from_the_cache(stub):
    assert run().stdout.splitlines()[-1] == run().stdout.splitlines()[-1]
    assert stub.calls == 1


def test_refresh_measures_again(stub):
    run()
    run("--refresh")
    assert stub.calls == 2


def test_a_corrupt_cache_is_measured_again(stub):
    run()
    path = json.loads(run("--json").stdout)["cache"]
    with open(path, "w") as file:
        file.write("{")
    run()
    assert stub.calls == 2


def test_no_measure_measures_nothing(stub):
    result = run("--no-measure")
    assert stub.calls == 0
    assert "Not measured yet" in result.stdout


def test_refresh_and_no_measure_exclude_each_other(stub):
    assert run("--refresh", "--no-measure").exit_code == 2


def test_json_is_one_document_on_stdout(stub):
    document = json.loads(run("--json").stdout)
    assert document["schema"] == 1
    assert document["ceilings"]["ceilings"]["launch_us"]["value"] == 4.1
    assert document["problem"] is None
    assert document["wall"] in ("namespaces", "landlock", "none")
    assert {"what", "ok", "detail"} == set(document["can_measure"][0])
    assert document["cache"] == str(cache_file(document["ceilings"]["key"]))


@pytest.mark.parametrize(
    ("wall", "says"),
    [
        ("namespaces", "trials write only to their own folders (mount namespace)"),
        ("landlock", "trials write only to their own folders (Landlock)"),
        ("none", "trials not guarded by the kernel: tune and batch ask for --unguarded"),
    ],
)
def test_what_keeps_trials_from_the_users_files_is_said(wall, says):
    assert says in " ".join(screen_of_gpus(wall=wall).split())


def test_without_torch_the_rest_is_still_shown(stub, monkeypatch):
    def refuse(*args):
        raise MissingExtra("torch", "torch", "measuring ceilings")

    monkeypatch.setattr(ceilings, "measure_ceilings", refuse)
    monkeypatch.setattr(machine, "torch_build", lambda: None)
    result = run()
    assert result.exit_code == 0
    assert "no torch" in result.stdout
    assert "measuring ceilings needs torch: pip install 'stepscope[torch]'" in result.stdout


def test_a_cache_that_cannot_be_written_is_said(stub, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    result = run()
    assert "4.10 µs" in result.stdout
    assert "not cached" in result.stdout


def machine_with_gpus():
    described = msgspec.to_builtins(machine.describe_machine())
    described["gpus"] = [GPU | {"index": index} for index in range(2)]
    described["topology"] = [{"a": 0, "b": 1, "link": "NVLink"}]
    described["driver"] = "580.95"
    described["cpu"] |= {
        "model": "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz",
        "physical_cores": 112,
        "logical_cores": 224,
        "usable_cores": 15.5,
        "governor": "powersave",
    }
    return described


def screen_of_gpus(**changes):
    entries = {name: {"value": value, "spread": 0.01} for name, value in NAMES.items()}
    document = {
        "machine": machine_with_gpus(),
        "wall": "landlock",
        "can_measure": [],
        "ceilings": {"device": "GPU", "measured_at": "2026-11-15", "ceilings": entries},
        "cautions": ["The CPU governor is powersave: clocks, and step times, may wander."],
        "problem": None,
    }
    return screen(document | changes)


def screen(document, encoding="utf-8"):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_story(machine_story(document), stream)
    return raw.getvalue().decode(encoding)


def test_gpus_links_and_long_names_fit_the_screen():
    text = screen_of_gpus()
    assert max(map(len, text.splitlines())) <= 80
    assert "1 x NVLink" in text
    assert "15.5 usable here" in " ".join(text.split())
    assert "4.30 TB/s" in text


def test_bars_compare_within_a_group():
    full = dict.fromkeys(("fp32", "fp16", "pinned", "pageable"), 0)
    for line in screen_of_gpus().splitlines():
        for label in full:
            if f" {label} " in line:
                full[label] = max(full[label], line.count("█"))
    assert full == {"fp32": 1, "fp16": 24, "pinned": 24, "pageable": 8}


def test_outputs_without_unicode_get_ascii():
    document = {
        "machine": machine_with_gpus(),
        "wall": "landlock",
        "can_measure": [{"what": "energy", "ok": True, "detail": ""}],
        "ceilings": None,
        "cautions": [],
        "problem": None,
    }
    assert screen(document, "ascii").isascii()


def test_importing_the_command_is_light():
    code = (
        "import sys, stepscope.cli.doctor; heavy = {'rich', 'psutil', 'pynvml', 'torch', 'numpy'}"
    )
    code += "; print(sorted(heavy & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
