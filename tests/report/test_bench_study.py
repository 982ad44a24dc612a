"""The screens and pages of the studies."""

import copy
import io
import itertools

import pytest
from bench_documents import document

from stepscope.report.render.markdown_tables import bench_markdown
from stepscope.report.render.terminal.bench import markdown_study, print_bench

SIDE = {
    "status": "ok", "why": None, "processes": 3, "samples_per_s": 100.0, "mean_ms": 160.0,
    "mean_low_ms": 158.0, "mean_high_ms": 162.0, "arithmetic": "fp32", "steps": 90,
    "epoch_s": 5.0, "train_s": 15.0, "loss": 0.2, "score": 0.91, "score_name": "dice",
    "peak_memory_bytes": 2 << 30,
}  # fmt: skip
ROW = {
    "kind": "convolution", "cpu_ms": 120.0, "cpu_share": 0.8, "gpu_ms": 1.0, "gpu_share": 0.6,
    "speedup": 120.0, "kernels": 40.0, "kernel_us": 25.0, "bound": "matrix products",
    "possible": 450.0, "why": "408 TFLOP/s against 900 GFLOP/s (tf32, fp32): 453× to be had",
}  # fmt: skip
CPU_GPU = {
    "name": "cpu-gpu",
    "model": "unet",
    "batch": 16,
    "fixes": [],
    "settings": {},
    "cpu": {**SIDE, "device": "cpu", "device_name": "AMD EPYC"},
    "gpu": {
        **SIDE, "device": "cuda", "device_name": "NVIDIA H200", "samples_per_s": 2000.0,
        "mean_ms": 8.0, "epoch_s": 0.25, "train_s": 0.75, "score": 0.912, "arithmetic": "tf32",
    },
    "speedup": {"against": "cpu", "ratio": 20.0, "low": 19.5, "high": 20.5, "verdict": "FASTER"},
    "saved": {"epoch_s": 4.75, "train_s": 14.25},
    "curves": {
        "losses": [{"step": n, "cpu": 1 / n, "gpu": 1 / n} for n in range(1, 91)],
        "scores": [{"step": 90, "cpu": 0.91, "gpu": 0.912, "cpu_s": 15.0, "gpu_s": 0.75}],
    },
    "agreement": {
        "first_steps": 10, "first_loss_relative": 0.00021, "final_loss_relative": 0.01,
        "final_score_difference": 0.002, "score_name": "dice", "within": 0.01, "same": True,
    },
    "operators": [ROW, {**ROW, "kind": "other", "gpu_ms": None, "gpu_share": None,
                        "speedup": None, "possible": None, "why": ""}],
    "waiting": {"step_ms": 8.0, "busy_ms": 2.0},
    "notes": [],
}  # fmt: skip

TECHNIQUE = {
    "technique": "fp32", "fixes": [], "accumulate": 1, "status": "ok", "why": None,
    "applies": True, "peak_memory_bytes": 1 << 30, "of_first": 1.0, "samples_per_s": 1000.0,
    "largest_batch": 60, "largest_micro_batch": 60, "too_large": 63, "bound": "memory",
    "bound_why": None, "largest_samples_per_s": 1100.0, "tries": [],
}  # fmt: skip
MEMORY = {
    "name": "memory",
    "model": "simple_cnn",
    "batch": 32,
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "memory_limit_gib": 2.0,
    "batch_limit": 65536,
    "settings": {},
    "rows": [
        TECHNIQUE,
        {**TECHNIQUE, "technique": "AMP", "fixes": ["amp=bf16"], "largest_batch": 116,
         "of_first": 0.55},
        {**TECHNIQUE, "technique": "accumulation", "fixes": ["accumulate=4"], "accumulate": 4,
         "largest_batch": 240, "largest_micro_batch": 60, "of_first": 0.4, "bound": "time"},
        {**TECHNIQUE, "technique": "fused attention", "fixes": ["sdpa"], "applies": False,
         "status": "not applicable", "why": "no attention was found", "largest_batch": None,
         "peak_memory_bytes": None, "of_first": None, "bound": None},
    ],
    "notes": [],
}  # fmt: skip


def shown(study, **changes):
    stream = io.StringIO()
    changed = {**copy.deepcopy(study), **changes}
    print_bench(document(study=changed), stream)
    return stream.getvalue()


def words(screen):
    return " ".join(screen.split())


def test_the_speedup_the_time_saved_and_the_agreement_come_first():
    lines = shown(CPU_GPU).strip().splitlines()
    assert lines[0].startswith("stepscope  study cpu-gpu · unet · batch 16 · AMD EPYC")
    assert "  the GPU is 20.0× as fast as the CPU (19.50–20.50)" in lines
    assert "  4.8 s saved in an epoch, 14 s saved in the whole training" in lines
    assert "  losses of the first 10 steps agree to 0.021%" in lines
    assert "  dice at the end 0.9100 and 0.9120: the same within 1%" in lines
    assert lines[-1].startswith("Next:  stepscope bench unet --device cuda")


def test_curves_stand_side_by_side_and_stay_short():
    rows = [line.split() for line in shown(CPU_GPU).splitlines()]
    assert ["1", "1.0000", "1.0000"] in rows
    assert ["90", "0.0111", "0.0111"] in rows
    assert ["90", "0.9100", "0.9120", "15", "s", "0.8", "s"] in rows
    assert sum(len(row) == 3 and row[0].isdigit() for row in rows) == 6


def test_each_kind_of_operator_has_its_speedup_and_its_reason():
    screen = shown(CPU_GPU)
    assert ["convolution", "120", "80%", "1.00", "60%", "120×"] in [
        line.split() for line in screen.splitlines()
    ]
    assert "453× to be had" in screen
    assert "the GPU computes 2.00 of a step's 8.00 ms" in words(screen)


def test_a_gpu_that_computes_all_the_time_is_not_said_to_wait():
    assert "waits for the host" not in shown(CPU_GPU, waiting={"step_ms": 8.0, "busy_ms": 7.9})


def test_trainings_that_came_to_different_ends_say_so():
    apart = {**CPU_GPU["agreement"], "same": False}
    assert "not the same within 1%" in shown(CPU_GPU, agreement=apart)
    unscored = {**CPU_GPU["agreement"], "final_score_difference": None}
    assert "losses at the end differ by 1%: the same" in shown(CPU_GPU, agreement=unscored)


def test_a_device_that_failed_is_the_answer():
    empty = dict.fromkeys(("speedup", "saved", "curves", "agreement", "operators", "waiting"))
    broken = {"status": "out_of_memory", "why": "CUDA out of memory", "device": "cuda"}
    screen = shown(CPU_GPU, gpu=broken, **empty)
    assert "GPU: out of memory: CUDA out of memory" in screen


def test_a_speedup_within_the_noise_is_called_so():
    gain = {**CPU_GPU["speedup"], "low": 0.9, "verdict": "UNCLEAR"}
    assert "within the noise" in shown(CPU_GPU, speedup=gain)


def test_the_memory_study_names_what_makes_most_room():
    screen = shown(MEMORY)
    assert "accumulation: a batch of 240, 4.00× that of fp32 (60)" in screen
    assert "least memory at batch 32: accumulation, 40% of fp32's 1.0 GiB" in screen
    assert "240+ (4×60)" in screen
    assert "+ the time for searching was over: accumulation" in words(screen)
    assert "Next:  stepscope run --fix accumulate=4 train.py" in screen


def test_techniques_that_do_not_apply_keep_their_row():
    screen = words(shown(MEMORY))
    assert "fused attention not applicable: no attention was found" in screen


def test_nothing_that_makes_more_room_is_said():
    screen = shown(MEMORY, rows=MEMORY["rows"][:1])
    assert "nothing makes room for more than fp32 has: a batch of 60" in screen
    nothing = [{**TECHNIQUE, "largest_batch": None, "status": "out_of_memory"}]
    assert "nothing fitted, at any batch size" in shown(MEMORY, rows=nothing)


@pytest.mark.parametrize("study", [CPU_GPU, MEMORY])
def test_every_line_fits_the_screen(study):
    long = shown(study, model="torchvision:" + "x" * 60, notes=["a note " * 30])
    assert max(map(len, long.splitlines())) <= 80


@pytest.mark.parametrize("study", [CPU_GPU, MEMORY])
def test_the_page_is_markdown_with_rectangular_tables(study):
    page = bench_markdown(document(study=study))
    assert page.startswith("# Benchmark")
    assert markdown_study({"study": study}) in page
    lines = page.splitlines()
    for above, line in itertools.pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert above.count("|") == line.count("|")


def test_strangers_text_stays_text():
    screen = shown(CPU_GPU, model="evil\x1b[2J")
    assert "\x1b" not in screen
    assert "\\<b\\>" in markdown_study({"study": {**MEMORY, "model": "<b>|"}})
