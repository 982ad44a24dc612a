"""Steps are found by whatever marks there are, tile the time, and lose no device work silently."""

from itertools import pairwise

import pytest
from handmade import Handmade
from recordings import recorded

from stepscope.analyze.timeline.steps import find_steps


def windows(steps):
    return [(step.start_ns, step.end_ns) for step in steps.steps]


def names(steps):
    return [step.name for step in steps.steps]


def test_profiler_steps_meet_and_the_time_between_marks_is_said():
    made = Handmade()
    made.annotation("ProfilerStep#7", 10, 40)
    made.annotation("ProfilerStep#8", 45, 80)
    made.annotation("Optimizer.step#SGD.step", 30, 39)
    steps = find_steps(made.timeline())
    assert (steps.how, names(steps)) == ("ProfilerStep", ["ProfilerStep#7", "ProfilerStep#8"])
    assert windows(steps) == [(10, 45), (45, 80)]
    assert steps.between_ns == 5


def test_work_before_the_first_step_and_after_the_last_is_said_to_be_outside():
    made = Handmade()
    made.annotation("ProfilerStep#0", 100, 200)
    made.work(50, 110)
    made.work(190, 230, stream="8")
    made.work(220, 260)
    made.work(90, 95, device=1)
    assert find_steps(made.timeline()).outside_ns == 50 + 60 + 5


def test_ranges_that_count_steps_are_steps():
    made = Handmade()
    for n in range(4):
        made.annotation(f"train step {n + 11}", 100 * n, 100 * n + 90)
        made.annotation("layer step 3", 100 * n + 5, 100 * n + 9)
    steps = find_steps(made.timeline())
    assert steps.how == "annotation"
    assert names(steps) == [f"train step {n}" for n in (11, 12, 13, 14)]
    assert windows(steps)[0] == (0, 100)


def test_a_repeated_range_without_a_number_is_numbered():
    made = Handmade()
    for n in range(3):
        made.annotation("train_step", 100 * n, 100 * n + 100)
    assert names(find_steps(made.timeline())) == ["train_step 1", "train_step 2", "train_step 3"]


@pytest.mark.parametrize(
    "ranges",
    [
        [("step 3", 0, 50), ("step 2", 50, 100)],  # counts down
        [("step 1", 0, 60), ("step 2", 50, 100)],  # overlaps
        [("step 1", 0, 10), ("step 2", 50, 60)],  # fills too little
        [("block 1", 0, 50), ("block 2", 50, 100)],  # speaks of no step
        [("step 1", 0, 100)],  # counts nothing
    ],
)
def test_ranges_that_do_not_count_steps_are_not_taken_for_them(ranges):
    made = Handmade()
    for row in ranges:
        made.annotation(*row)
    steps = find_steps(made.timeline(span=(0, 100)))
    assert steps.how == "whole"
    assert windows(steps) == [(0, 100)]


def test_a_step_ends_with_the_optimizer_and_the_last_one_with_its_work():
    made = Handmade()
    for n in range(3):
        made.annotation("Optimizer.step#AdamW.step", 100 * n + 80, 100 * n + 90)
        made.annotation("Optimizer.zero_grad#AdamW.zero_grad", 100 * n, 100 * n + 5)
    made.work(290, 320, launch=(285, 287))
    made.work(330, 340, launch=(300, 301))
    steps = find_steps(made.timeline(span=(0, 400)))
    assert (steps.how, names(steps)) == ("optimizer", ["step 1", "step 2", "step 3"])
    assert windows(steps) == [(0, 90), (90, 190), (190, 320)]
    assert steps.outside_ns == 10


def test_of_several_optimizers_the_one_that_takes_the_most_time_ends_a_step():
    made = Handmade()
    for n in range(4):
        made.annotation("Optimizer.step#SGD.step", 100 * n + 40, 100 * n + 42)
        made.annotation("Optimizer.step#AdamW.step", 100 * n + 80, 100 * n + 90)
    assert [end for _, end in windows(find_steps(made.timeline()))] == [90, 190, 290, 390]


def test_optimizers_of_one_class_that_take_turns_make_one_step():
    made = Handmade()
    for n in range(4):
        for at, launches in ((40, 2), (80, 5)):
            made.annotation("Optimizer.step#Adam.step", 100 * n + at, 100 * n + at + 10)
            for call in range(launches):
                begin = 100 * n + at + 1 + call
                made.work(begin + 1, begin + 2, launch=(begin, begin + 1))
    assert [end for _, end in windows(find_steps(made.timeline()))] == [90, 190, 290, 390]


def test_without_annotations_bursts_of_optimizer_kernels_end_steps():
    made, now = Handmade(), 0
    fused = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"
    for _ in range(3):
        for name in ["gemm"] * 12 + [fused, "add", fused]:
            made.work(now + 5, now + 9, launch=(now, now + 4), name=name)
            now += 10
    steps = find_steps(made.timeline())
    assert steps.how == "optimizer"
    assert windows(steps) == [(0, 144), (144, 294), (294, 449)]


def test_a_recording_with_nothing_in_it_is_one_step_of_some_length():
    steps = find_steps(Handmade().timeline())
    assert (steps.how, len(steps.steps)) == ("whole", 1)
    assert steps.steps[0].end_ns > steps.steps[0].start_ns


@pytest.mark.parametrize(
    ("trace", "how", "count"),
    [
        ("a100_nccl_rank0", "ProfilerStep", 3),
        ("v100_ns_timestamps.pt.trace", "ProfilerStep", 5),
        ("resnet18_b32_h200", "optimizer", 8),
        ("cpu_only_rank34.pt.trace", "ProfilerStep", 1),
        ("vllm_decode_cuda_graphs", "whole", 1),
    ],
)
def test_real_recordings_have_their_steps(trace, how, count):
    steps = find_steps(recorded(trace))
    assert (steps.how, len(steps.steps)) == (how, count)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(steps.steps))
