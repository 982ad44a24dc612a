"""The screens of `stepscope bench`, its studies and subcommands, and the same as Markdown."""

import copy
import io
import itertools

import msgspec
import pytest
from bench_documents import (
    CPU_GPU,
    MEMORY,
    NO_MODEL,
    TECHNIQUE,
    document,
    failed,
    kernels_document,
    loader_document,
    loader_point,
    operator,
    point,
)
from snapshots import check_screen

from stepscope.bench.results import bench_type
from stepscope.report.render.markdown import markdown
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.bench.story import bench_story


class Terminal(io.StringIO):
    """A stream that says which encoding it has."""

    def __init__(self, encoding):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self):
        return self._encoding


def story(whole):
    return bench_story(msgspec.convert(whole, bench_type(whole)))


def screen(whole, stream=None):
    stream = stream or io.StringIO()
    print_story(story(whole), stream)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return text


def shown(*points, **more):
    return screen(document(*points, **more))


def study_shown(study, **changes):
    return screen(document(study={**copy.deepcopy(study), **changes}))


def words(text):
    return " ".join(text.split())


def variants():
    return [
        point(),
        point(fixes=["amp=bf16"], mean_ms=10.0, ratio=2.0),
        point(fixes=["channels_last"], mean_ms=20.1, ratio=0.995, verdict="SAME"),
        point(fixes=["compile=default"], mean_ms=25.0, ratio=0.8, verdict="SLOWER"),
    ]


def ablation():
    fixes = ["amp=bf16", "channels_last"]
    return document(
        point(),
        point(fixes=["amp=bf16"], mean_ms=10.0, ratio=2.0),
        point(fixes=["channels_last"], mean_ms=16.0, ratio=1.25),
        point(fixes=fixes, mean_ms=8.0, ratio=2.5),
        request={"ablate": fixes},
    )


def sweep():
    rates = {16: 1000, 32: 1900, 64: 3600, 128: 3700}
    return document(
        *(point(batch=b, mean_ms=b / r * 1e3) for b, r in rates.items()),
        failed("out_of_memory", "CUDA out of memory", batch=4096),
        noise_floor=0.031,
        notes=["no MFU on cuda: the device is gone"],
    )


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("bench-point", document(point(mfu=0.21, gpu_busy=0.87))),
        ("bench-variants", document(*variants())),
        ("bench-sweep", sweep()),
        ("bench-ablation", ablation()),
        ("bench-cpu-gpu", document(study=CPU_GPU)),
        ("bench-memory", document(study=MEMORY)),
        ("bench-loader", {**document(), **loader_document()}),
        ("bench-kernels", {**document(), **kernels_document()}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_screens_are_these(name, whole):
    check_screen(name, bench_story(msgspec.convert(whole, bench_type(whole))))


def test_the_next_command_takes_the_best_variant_to_the_users_program():
    assert "Next:  stepscope run --fix amp=bf16 train.py" in shown(*variants())


def test_nothing_is_called_faster_that_is_within_the_noise():
    text = shown(point(), point(fixes=["pin"], mean_ms=19.0, ratio=1.05, verdict="UNCLEAR"))
    assert "no variant beats none beyond noise." in text
    assert "faster" not in text


def test_failures_are_rows_of_the_table():
    text = words(
        shown(
            point(),
            failed("failed", "x.view", fixes=["channels_last"]),
            failed("timed_out", "60 s", fixes=["compile"]),
        )
    )
    assert "failed: x.view" in text
    assert "timed out: 60 s" in text


def test_where_nothing_worked_it_says_so():
    assert "Nothing could be measured." in shown(failed("failed", "boom"))


def test_a_base_that_failed_leaves_nothing_to_compare_with():
    text = shown(failed("failed", "boom"), point(fixes=["pin"]))
    assert "not compared, none was not measured." in text


def test_both_devices_are_compared():
    text = words(shown(point(), point(device="cpu", mean_ms=400.0)))
    assert "CUDA is 20.0× faster than the CPU." in text


def test_a_note_that_is_true_of_several_points_is_made_once():
    text = shown(*(point(batch=n, notes=["throttled: power cap"]) for n in (1, 2)), point(batch=3))
    assert words(text).count("Throttled: power cap (2 of 3 points).") == 1


def test_many_unstable_points_are_counted():
    text = shown(*(point(batch=n, unstable=True, unstable_why="drifts") for n in range(1, 9)))
    assert words(text).count("is unstable: drifts.") == 4
    assert "4 more points are unstable." in text


def test_an_mfu_above_the_ceiling_is_explained():
    assert "MFU above 100%" in shown(point(mfu=1.2))


def test_terminals_without_unicode_get_ascii():
    stream = Terminal("ascii")
    assert screen(document(*variants()), stream).isascii()


def test_generation_counts_tokens():
    one = point(mode="generate", tokens_per_s=512.0, first_token_ms=30.0, token_ms=4.0)
    assert "512 tokens/s, 4.00 ms per token" in shown(one)


# Studies


def test_a_gpu_that_computes_all_the_time_is_not_said_to_wait():
    busy = {"step_ms": 8.0, "busy_ms": 7.9}
    assert "waits for the host" not in study_shown(CPU_GPU, waiting=busy)


def test_trainings_that_ended_differently_say_so():
    apart = {**CPU_GPU["agreement"], "same": False}
    assert "not the same within 1%" in words(study_shown(CPU_GPU, agreement=apart))
    unscored = {**CPU_GPU["agreement"], "final_score_difference": None}
    text = study_shown(CPU_GPU, agreement=unscored)
    assert "Final losses differ by 1%: same within 1%." in words(text)


def test_a_device_that_failed_is_the_answer():
    empty = dict.fromkeys(("speedup", "saved", "curves", "agreement", "operators", "waiting"))
    broken = {"status": "out_of_memory", "why": "CUDA out of memory", "device": "cuda"}
    text = study_shown(CPU_GPU, gpu=broken, **empty)
    assert "GPU: out of memory: CUDA out of memory." in text


def test_a_speedup_within_the_noise_is_called_so():
    gain = {**CPU_GPU["speedup"], "low": 0.9, "verdict": "UNCLEAR"}
    assert "within noise" in study_shown(CPU_GPU, speedup=gain)


def test_no_technique_that_fits_more_is_said():
    text = study_shown(MEMORY, rows=MEMORY["rows"][:1])
    assert "No technique fits a larger batch than fp32: 60." in text
    nothing = [{**TECHNIQUE, "largest_batch": None, "status": "out_of_memory"}]
    assert "Nothing fits, at any batch size." in study_shown(MEMORY, rows=nothing)


@pytest.mark.parametrize("study", [CPU_GPU, MEMORY])
def test_every_line_of_a_study_fits_the_screen(study):
    text = study_shown(study, model="torchvision:" + "x" * 20, notes=["a note " * 30])
    assert all(len(line) <= 80 for line in text.splitlines())
    assert words(text).lower().count("a note") == 30


# Loader and kernels


def test_settings_that_failed_are_told_with_their_reason():
    points = [
        loader_point(32, 0, 1000.0),
        loader_point(32, 2, 0.0, prefetch=2, status="failed", why="no room in /dev/shm"),
        loader_point(32, 4, 0.0, prefetch=2, status="missing"),
    ]
    text = words(screen({**document(), **loader_document(points)}))
    assert "batch 32, 2 workers: failed: no room in /dev/shm" in text


def test_counters_are_told_beside_the_model():
    told = {
        "calls": 318, "time_share": 0.47, "flops": 3.09e12, "model_flops": 3.09e12,
        "flops_error": 0.004, "bytes": 3e10, "model_bytes": 2.5e10, "bytes_ratio": 1.2,
    }  # fmt: skip
    one = operator("aten::convolution_backward", counted=told)
    text = words(screen({**document(), **kernels_document([one])}))
    assert "(47% of its time): 1,030 GFLOP (model +0.4%), 1.20× the least bytes" in text


def test_work_without_a_formula_has_dashes():
    one = operator("Memcpy HtoD (Pinned -> Device)", **NO_MODEL)
    text = screen({**document(), **kernels_document([one])})
    *_, line = (line for line in text.splitlines() if "Memcpy" in line)
    assert line.split().count("–") >= 3


def test_on_a_cpu_operators_are_told_and_the_next_step_is_doctor():
    found = kernels_document(on="host", device="cpu", ceilings=None, launched=0.0)
    text = screen({**document(), **found})
    assert "31.9 ms of operators" in text
    assert "Next:  stepscope doctor" in text


def test_operators_that_are_not_shown_are_counted():
    text = screen({**document(), **kernels_document(operators_in_all=15)})
    assert "… 14 more (--top N)" in text


# Markdown


@pytest.mark.parametrize(
    "whole",
    [
        sweep(),
        ablation(),
        document(study=CPU_GPU),
        document(study=MEMORY),
        {**document(), **loader_document()},
        {**document(), **kernels_document()},
    ],
    ids=["sweep", "ablation", "cpu-gpu", "memory", "loader", "kernels"],
)
def test_markdown_tables_are_rectangular(whole):
    page = markdown(story(whole))
    for above, line in itertools.pairwise(page.splitlines()):
        if above.startswith("|") and line.startswith("|"):
            assert above.replace("\\|", "").count("|") == line.replace("\\|", "").count("|")


def test_strangers_text_stays_text():
    hostile = failed("failed", "<script>a|b</script> [x](y) `c`\x1b[2J")
    whole = document(hostile, point(model="evil\x1b[2J"), notes=["<img src=x>"])
    assert "\x1b" not in screen(whole)
    page = markdown(story(whole))
    assert "<script>" not in page
    assert "\\<img" in page
