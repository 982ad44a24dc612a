"""The heaviest operators and kernels on a terminal and as Markdown."""

from io import StringIO

from stepscope.report.render.terminal.bench_kernels import markdown_kernels, print_kernels


def operator(name, **more):
    usual = {
        "name": name,
        "dtype": "tf32",
        "category": "convolution",
        "calls": 53.0,
        "kernels": 240.0,
        "time_ms": 9.94,
        "share": 0.31,
        "flops": 1.03e12,
        "bytes": 8.45e9,
        "flops_per_s": 1.04e14,
        "bytes_per_s": 8.5e11,
        "bound": "compute",
        "ceiling_share": 0.263,
        "counted": None,
    }
    return {**usual, **more}


NOTHING = dict.fromkeys(
    ("dtype", "category", "flops", "bytes", "flops_per_s", "bytes_per_s", "bound", "ceiling_share")
)


def document(operators=None, kernels=(), **more):
    found = {
        "model": "resnet50",
        "mode": "train",
        "batch": 64,
        "device": "cuda",
        "fixes": [],
        "on": "device",
        "work_ms": 31.9,
        "launched": 737.0,
        "known_share": 0.975,
        "ceilings": {"source": "measured"},
        "operators": operators or [operator("aten::convolution_backward")],
        "operators_in_all": 1,
        "kernels": list(kernels),
        "step": {"model_flops": 1.555e12},
        **more,
    }
    machine = {"gpus": [{"name": "NVIDIA H200"}], "cpu": {"model": "EPYC"}, "torch": None}
    return {"machine": machine, "kernels": found, "notes": ["counted: 573 of 737 kernels"]}


def screen(whole):
    stream = StringIO()
    print_kernels(whole, stream)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_an_operator_is_a_line_with_its_bound_and_its_ceiling():
    text = screen(document())
    assert "NVIDIA H200" in text
    assert "31.9 ms of GPU work a step   737 kernels   FLOPs known of 98%" in text
    line = next(line for line in text.splitlines() if "convolution_backw…" in line)
    words = line.split()
    assert words[1:6] == ["tf32", "9.94", "31%", "1,030", "8,450"]
    assert words[6:] == ["104", "TFLOP/s", "compute", "26%"]
    assert "note: counted: 573 of 737 kernels" in text
    assert "--fix none --fix amp=bf16" in text.splitlines()[-1]


def test_memory_bound_work_is_told_by_its_bytes():
    one = operator("aten::add_", bound="memory", category="elementwise", bytes_per_s=4.4e12)
    assert "4.40 TB/s memory 26%" in screen(document([one]))


def test_counters_stand_on_a_line_of_their_own():
    told = {
        "calls": 318, "time_share": 0.47, "flops": 3.09e12, "model_flops": 3.09e12,
        "flops_error": 0.004, "bytes": 3e10, "model_bytes": 2.5e10, "bytes_ratio": 1.2,
    }  # fmt: skip
    text = screen(document([operator("aten::convolution_backward", counted=told)]))
    line = "    counted (47% of it): 1,030 GFLOP (model +0.4%), 10,000 MB (1.20× the least)"
    assert line in text


def test_work_without_a_formula_has_dashes():
    text = screen(document([operator("Memcpy HtoD (Pinned -> Device)", **NOTHING)]))
    line = next(line for line in text.splitlines() if "Memcpy" in line)
    assert line.split()[-4:] == ["–"] * 4


def test_the_longest_numbers_still_fit():
    one = operator(
        "aten::convolution_backward",
        flops=1e15,
        bytes=1e13,
        time_ms=99999.0,
        share=1.0,
        flops_per_s=9.99e14,
        ceiling_share=1.7,
    )
    assert "compute 100%" in screen(document([one]))


def test_kernels_are_listed_with_the_rates_that_were_counted():
    kernel = {
        "name": "void at::native::vectorized_elementwise_kernel<4, float>(int)",
        "operator": "aten::add_",
        "time_ms": 1.94,
        "share": 0.06,
        "counted": {"flops_per_s": 3.31e11, "bytes_per_s": 4.4e12},
    }
    copy = {**kernel, "name": "Memcpy HtoD", "operator": None, "counted": None}
    lines = screen(document(kernels=[kernel, copy])).splitlines()
    row = next(line for line in lines if "vectorized_elementwise_ker…" in line)
    assert row.split()[1:] == ["add_", "1.94", "6%", "0.33", "4.40"]
    assert next(line for line in lines if "Memcpy" in line).split()[-1] == "6%"


def test_on_a_cpu_operators_are_told_and_the_next_step_is_doctor():
    text = screen(document(on="host", device="cpu", ceilings=None, launched=0.0))
    assert "31.9 ms of operators a step" in text
    assert "kernels   " not in text
    assert text.splitlines()[-1].startswith("Next:  stepscope doctor")


def test_what_is_not_shown_is_counted():
    assert "… and 14 more: --top" in screen(document(operators_in_all=15))


def test_names_cannot_colour_the_screen_or_break_the_table():
    text = screen(document([operator("a\x1b[31m|b")]))
    assert "a·[31m|b" in text
    assert "\\|b" in markdown_kernels(document([operator("a|b")]))


def test_markdown_has_the_model_and_the_counters_side_by_side():
    told = {"calls": 318, "flops": 6.18e12, "model_flops": 6.18e12, "bytes": 6e10}
    told |= {"model_bytes": 5.07e10, "time_share": 1.0, "flops_error": 0.0, "bytes_ratio": 1.18}
    text = markdown_kernels(document([operator("aten::mm", counted=told)]))
    assert (
        "| aten::mm | tf32 | 9.94 | 31% | 1,030 | 1,030 | 8,450 | 10,000 | compute | 26% |" in text
    )
    assert "**resnet50 train, batch 64** on NVIDIA H200" in text
