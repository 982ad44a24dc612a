"""The small parts that stories are made of."""

import numpy as np
import pytest

from stepscope.record.units import format_rate, memory_unit
from stepscope.report.story.blocks import Column, Table
from stepscope.report.story.phrases import (
    command_line,
    display_path,
    location_of,
    rerun_command,
)
from stepscope.report.story.series import downsample_note, downsampled_indices, step_histogram
from stepscope.report.story.trace.kernels import short_kernel


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::(anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("void at::native::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>>(int)",
         "CUDAFunctor_add"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688>(cutlass_80::Params)",
         "cutlass_80_tensorop_s1688"),
        ("std::enable_if<!(false), void>::type internal::gemvx::gemv<int>(X)", "gemv"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("a>b<c", "a>b<c"),
        ("<<<", "<<<"),
        ("", ""),
    ],
)  # fmt: skip
def test_kernels_are_called_by_their_function(name, short):
    assert short_kernel(name) == short


def test_few_points_are_all_drawn_and_many_keep_their_extremes():
    few, many = np.arange(2000.0), np.sin(np.arange(50_001.0))
    many[123], many[40_000] = -9.0, 9.0
    assert len(downsampled_indices(few)) == 2000
    at = downsampled_indices(many)
    assert len(at) <= 2000
    assert {0, 123, 40_000, 50_000} <= set(at.tolist())
    assert downsample_note(2000, "points") == ""
    assert downsample_note(50_001, "points").startswith("Of 50,001 points")


def test_gaps_do_not_hide_what_is_beside_them():
    values = np.full(9_000, np.nan)
    values[4_321] = 7.0
    assert 4_321 in downsampled_indices(values)


def test_far_steps_are_counted_in_the_last_bar_and_said():
    times = np.append(np.linspace(9.0, 11.0, 499), 500.0)
    found = step_histogram(times, "step")
    assert sum(found.series[0].y) == 500
    assert max(found.series[0].x) < 20
    assert found.note == "1 takes longer, up to 500 ms: they are in the last bar."


def test_steps_that_all_take_the_same_still_make_a_histogram():
    assert sum(step_histogram(np.full(10, 4.0), "step").series[0].y) == 10


@pytest.mark.parametrize(
    ("file", "program", "shown"),
    [
        ("/home/me/p/train.py", "/home/me/p/train.py", "train.py"),
        ("/home/me/p/data/set.py", "/home/me/p/train.py", "data/set.py"),
        ("/home/me/p/train.py", "train.py", "train.py"),
        ("/home/me/p/train.py", "./train.py", "./train.py"),
        ("/v/lib/python3.12/site-packages/torch/nn/x.py", "/home/me/p/t.py", "torch/nn/x.py"),
        ("/elsewhere/deep/down/util.py", "/home/me/p/t.py", "down/util.py"),
        ("<string>", None, "<string>"),
    ],
)
def test_files_are_named_from_the_program_on(file, program, shown):
    assert display_path(file, program) == shown


def test_a_place_that_is_not_known_is_nothing():
    assert location_of({"file": None, "line": 3}) == ""
    assert location_of({"file": "a.py"}) == "a.py"


def test_commands_can_be_pasted():
    run = {"program": "-m pkg.train", "argv": ["--name", "two words; rm -rf"]}
    assert command_line(run) == "-m pkg.train --name 'two words; rm -rf'"
    again = rerun_command({"run": run | {"argv": []}}, "--memory")
    assert again == "stepscope run --memory -m pkg.train"


def test_columns_that_say_nothing_are_left_out():
    columns = (Column("a"), Column("b"), Column("c"))
    found = Table("t", columns, ((1, None, ""), (2, None, "x")), "T").without_empty_columns()
    assert [one.name for one in found.columns] == ["a", "c"]
    assert found.rows == ((1, ""), (2, "x"))


def test_units_fit_the_largest():
    assert memory_unit([3 << 30, None, float("nan")]) == (2.0**30, "GiB")
    assert memory_unit([]) == (1.0, "bytes")
    assert format_rate(4.95e14, "FLOP/s") == "495 TFLOP/s"
    assert format_rate(12.0, "FLOP/s") == "12 FLOP/s"
