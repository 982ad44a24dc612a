"""The screen of `stepscope bench`."""

import io

import pytest
from bench_documents import document, failed, point

from stepscope.report.render.terminal.bench import print_bench


class Terminal(io.StringIO):
    """A stream that says which encoding it has."""

    def __init__(self, encoding):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self):
        return self._encoding


def shown(*points, **more):
    stream = io.StringIO()
    print_bench(document(*points, **more), stream)
    return stream.getvalue()


def variants():
    return [
        point(),
        point(fixes=["amp=bf16"], mean_ms=10.0, ratio=2.0),
        point(fixes=["channels_last"], mean_ms=20.1, ratio=0.995, verdict="SAME"),
        point(fixes=["compile=default"], mean_ms=25.0, ratio=0.8, verdict="SLOWER"),
    ]


def test_one_point_is_told_in_one_line():
    lines = shown(point(mfu=0.21)).strip().splitlines()
    assert lines[0].startswith("stepscope  bench · resnet18 · NVIDIA H200 · torch 2.11.0")
    assert lines[2].strip() == "1,600 samples/s   20.0 ms per step ±1.0%   peak 3.0 GiB   MFU 21%"
    assert "stepscope bench resnet18 --batch 1,8,64,512" in lines[-2]


def test_the_fastest_variant_comes_first_with_its_interval():
    lines = shown(*variants()).strip().splitlines()
    best = "  2.00× as fast as none (1.96–2.04) with amp=bf16: 3,200 samples/s"
    assert lines[2] == best
    assert lines[3].split() == ["2.00×", "1.96–2.04", "faster", "amp=bf16"]
    assert lines[4].split()[2:] == ["same", "channels_last"]
    assert lines[5].split()[2:] == ["slower", "compile=default"]


def test_the_next_command_takes_the_best_variant_to_the_users_program():
    assert "Next:  stepscope run --fix amp=bf16 train.py" in shown(*variants())


def test_nothing_is_called_faster_that_is_within_the_noise():
    screen = shown(point(), point(fixes=["pin"], mean_ms=19.0, ratio=1.05, verdict="UNCLEAR"))
    assert "nothing is faster than none, beyond the noise" in screen
    assert "unclear" in shown(
        point(),
        point(fixes=["pin"], ratio=1.05, verdict="UNCLEAR"),
        point(fixes=["tf32"], ratio=1.4),
    )


def test_failures_are_rows_of_the_table():
    screen = shown(
        point(),
        failed("out_of_memory", "CUDA out of memory", batch=4096),
        failed("failed", "channels_last: x.view", fixes=["channels_last"]),
        failed("timed_out", "ended after 60 s", fixes=["compile=default"]),
    )
    assert "4,096  none" in screen
    assert "out of memory: CUDA out of memory" in screen
    assert "failed: channels_last: x.view" in screen
    assert "timed out: ended after 60 s" in screen


def test_nothing_measured_is_said():
    assert "nothing could be measured" in shown(failed("out_of_memory", "too large"))


def test_a_base_that_failed_leaves_nothing_to_compare_with():
    screen = shown(failed("failed", "boom"), point(fixes=["amp=bf16"]))
    assert "none was not measured, so there is nothing to compare with" in screen


def test_an_unstable_series_is_marked_and_explained():
    screen = shown(point(unstable=True, unstable_why="the clock fell by 20%"))
    assert "32 !" in screen
    assert "! unstable: none: the clock fell by 20%" in screen


def test_fixes_that_did_not_apply_say_why():
    why = [{"name": "sdpa", "why": "no attention in the model"}]
    screen = shown(point(), point(fixes=["sdpa"], ratio=1.0, verdict="SAME", not_applied=why))
    assert "without sdpa: no attention in the model" in screen


def test_a_batch_sweep_names_its_knee():
    rates = {16: 1000, 32: 1900, 64: 3600, 128: 3900, 256: 3950}
    screen = shown(*(point(batch=b, mean_ms=b / r * 1e3) for b, r in rates.items()))
    assert "most at batch 256, 3,950 samples/s" in screen
    assert "the knee is at 64" in screen
    assert "--ablate" in screen.splitlines()[-2]


def test_a_sweep_that_still_grows_has_no_knee():
    screen = shown(*(point(batch=b, mean_ms=10.0) for b in (16, 32, 64)))
    assert "6,400 samples/s; still growing: no knee" in screen


def test_an_ablation_shows_each_fix_alone_added_and_left_out():
    points = [
        point(),
        point(fixes=["amp=bf16"], mean_ms=10.0, ratio=2.0),
        point(fixes=["channels_last"], mean_ms=20.0, ratio=1.0, verdict="SAME"),
        point(fixes=["amp=bf16", "channels_last"], mean_ms=8.0, ratio=2.5),
    ]
    lines = shown(*points, request={"ablate": ["amp=bf16", "channels_last"]}).splitlines()
    rows = [line.split() for line in lines]
    assert ["amp=bf16", "2.00×", "2.00×", "1.00×~"] in rows
    assert ["channels_last", "1.00×~", "2.50×", "2.00×"] in rows


def test_an_ablation_goes_on_where_a_combination_failed():
    points = [point(), point(fixes=["amp=bf16"], ratio=2.0), failed("failed", "x", fixes=["pin"])]
    lines = shown(*points, request={"ablate": ["amp=bf16", "pin"]}).splitlines()
    assert ["pin", "–", "–", "2.00×"] in [line.split() for line in lines]


def test_the_gpu_is_compared_with_the_cpu():
    screen = shown(point(), point(device="cpu", mean_ms=400.0))
    assert "resnet18 train, batch 32: cuda does 20.0× what the cpu does" in screen
    assert "NVIDIA H200, AMD EPYC" in screen


def test_inference_shows_percentiles_and_generation_shows_tokens():
    assert "p99" in shown(point(mode="infer"))
    generated = point(
        mode="generate", tokens_per_s=812.0, first_token_ms=9.5, token_ms=1.23, samples_per_s=None
    )
    screen = shown(generated)
    assert "812 tokens/s   1.23 ms per token" in screen
    assert "first token ms" in screen


def test_what_training_came_to_stands_under_the_scores_own_name():
    screen = shown(point(loss=0.4, score=0.91, score_name="dice", steps=120, time_to_score_s=4.2))
    assert "dice" in screen
    assert "0.9100" in screen
    assert "to the score" in screen


def test_columns_without_a_value_are_left_out():
    screen = shown(point())
    assert "J/sample" not in screen
    assert "0.002" in shown(point(energy_j_per_sample=0.002))


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_every_line_fits_the_screen(mode):
    long = ["amp=bf16", "channels_last", "compile=reduce-overhead", "fused_optimizer"]
    full = {
        "mode": mode, "loss": 0.123456, "score": 0.5, "score_name": "token_accuracy",
        "steps": 123456, "epoch_s": 4000.0, "time_to_score_s": 3000.0, "gpu_busy": 0.99,
        "tflops_per_s": 123.4, "mfu": 0.31, "energy_j_per_sample": 0.00123,
        "carbon_g_per_million": 1234.0, "cost_per_million": 0.0123, "first_calls_s": 100.0,
    }  # fmt: skip
    screen = shown(
        point(4096, mean_ms=12345.6, **full),
        point(4096, fixes=long, mean_ms=5000.0, ratio=2.47, unstable=True, **full),
        failed("failed", "a reason " * 30, batch=8),
        notes=["a note " * 40],
        noise_floor=0.012,
    )
    assert max(map(len, screen.splitlines())) <= 80
    assert "noise floor 1.2%" in screen


def test_times_that_are_not_known_at_all_say_no_more_than_that():
    wild = point(mean_low_ms=0.1, mean_high_ms=5000.0)
    screen = shown(wild, noise_floor=255.0)
    assert "±>100%" in screen
    assert "noise floor above 100%" in screen


def test_a_share_of_a_ceiling_that_cannot_be_is_explained():
    assert "stepscope doctor --refresh" in shown(point(mfu=7.15))
    assert "doctor" not in shown(point(mfu=0.9))


def test_many_models_are_not_compared_by_variant():
    screen = shown(point(), point(model="mlp", mean_ms=1.0))
    assert "fastest in train: mlp on cuda, 32,000 samples/s at batch 32" in screen


def test_many_points_keep_the_answer_short():
    batches = [2**n for n in range(14)]
    points = [point(b, f, 10.0, ratio=r) for b in batches for f, r in (([], None), (["pin"], 1.5))]
    head = shown(*points).split("resnet18 · train · cuda")[0]
    assert "more lines of this kind: --json" in head
    assert len(head.splitlines()) < 20


def test_notes_of_points_are_said_once():
    screen = shown(point(notes=["throttled"]), point(64, notes=["throttled"]))
    assert screen.count("throttled") == 1
    assert "(2 of 2 points)" in screen


def test_what_a_stranger_wrote_cannot_move_the_cursor():
    screen = shown(
        point(model="evil\x1b[2J\r\n"), failed("failed", "\x1b]0;x\x07", batch=64), notes=["\x9b1m"]
    )
    assert not {"\x1b", "\r", "\x9b", "\x07"} & set(screen)


def test_an_ascii_terminal_gets_ascii():
    stream = Terminal("ascii")
    print_bench(document(*variants()), stream)
    assert stream.getvalue().isascii()
    assert "2.00x as fast as none" in stream.getvalue()
