"""The questions of a baseline analysis."""

import pytest
from diagnosing import case, finding

from stepscope.diagnose.headroom import headroom
from stepscope.diagnose.key_questions import answer_questions
from stepscope.record.finding import AnswerStatus

TRACE = {
    "steps": {"count": 2},
    "breakdown_ns": {"wall": 20_000_000, "idle": 12_000_000},
    "idle_ns": {"loader": 9_000_000, "host": 3_000_000, "copy": 0},
    "launch": {"kernels": 400, "shorter_than_5us": 0.5, "shorter_than_launch": 0.25},
    "kernels": [{"total_ns": 6_000_000}, {"total_ns": 2_000_000}],
    "copies": [
        {"direction": "HtoD", "memory": "pageable", "total_ns": 1_000_000, "overlapped": 0.0},
        {"direction": "HtoD", "memory": "pinned", "total_ns": 1_000_000, "overlapped": 0.5},
        {"direction": "DtoH", "memory": "pinned", "total_ns": 9_000_000, "overlapped": 0.0},
    ],
}
NONE = {
    "steps": {"count": 2},
    "breakdown_ns": {"wall": 20_000_000, "idle": None},
    "idle_ns": {"loader": None, "host": None},
    "launch": {"kernels": 0, "shorter_than_5us": None, "shorter_than_launch": None},
    "kernels": [],
    "copies": [],
}


def answers(one, findings=()):
    return {
        answer.question: answer
        for answer in answer_questions(one, findings, headroom(findings, one))
    }


def on_gpu(busy=0.4, **more):
    return case(10.0, "cuda", show={"gpu": {"busy_fraction": busy}}, trace=TRACE, **more)


def by_word(found, word):
    (one,) = [answer for question, answer in found.items() if word in question]
    return one


GPU = [
    ("How busy", "busy 40% of the step", 40.0, "%"),
    ("idle, and why", "idle 60% of the step; of that data loader 75%", 60.0, "%"),
    ("copies", "1.00 ms per step from pageable and pinned memory; 25% overlaps", 1.0, "ms"),
    ("waits for data", "30%, 3.00 ms", 30.0, "%"),
    ("How many kernels", "200", 200.0, "kernels"),
    ("How long is a kernel", "20.0 µs; 50% are shorter than 5 µs", 20.0, "µs"),
    ("launch overhead", "yes: the GPU waits 15% of the step for launches; 25% of", 15.0, "%"),
    ("CPU the limit", "yes: the GPU waits 60% of the step", 60.0, "%"),
]


@pytest.mark.parametrize(("word", "words", "value", "unit"), GPU)
def test_a_run_on_the_gpu_answers_with_numbers(word, words, value, unit):
    found = by_word(answers(on_gpu(phases={"data_wait": 3.0})), word)
    assert words in found.answer
    assert found.value == pytest.approx(value)
    assert found.unit == unit


def test_a_trace_alone_answers_from_its_own_steps():
    found = answers(case(10.0, "cuda", trace=TRACE))
    assert by_word(found, "How busy").value == pytest.approx(40)
    assert by_word(found, "waits for data").value == pytest.approx(45)


def test_on_the_cpu_there_is_no_gpu_to_speak_of():
    show = {"gpu": None, "host": {"cpu_percent": 150.0}}
    found = answers(case(10.0, "cpu", show=show, trace=NONE, phases={"data_wait": 5.0}))
    assert by_word(found, "How busy").answer == ("no GPU used; program and workers use 1.5 cores")
    assert by_word(found, "CPU the limit").answer.startswith("yes")
    assert by_word(found, "waits for data").value == pytest.approx(50)
    for word in ("idle, and why", "copies", "How many kernels", "launch overhead"):
        assert by_word(found, word).status is AnswerStatus.NO_GPU
        assert by_word(found, word).value is None


def test_without_a_window_what_is_not_known_is_said():
    found = answers(case(10.0, "cuda", show={"gpu": {"busy_fraction": None}}, phases={"h2d": 2.0}))
    for word in (
        "How busy",
        "idle, and why",
        "How many kernels",
        "launch overhead",
        "CPU the limit",
    ):
        assert by_word(found, word).status is AnswerStatus.NOT_RECORDED
    assert by_word(found, "copies").value == 2.0


def test_a_busy_gpu_is_not_limited_by_the_cpu():
    found = answers(on_gpu(busy=0.97, phases={"data_wait": 0.0}))
    assert by_word(found, "CPU the limit").answer.startswith("no")
    assert by_word(found, "idle, and why").answer.startswith("no")


def test_the_main_bottlenecks_are_three_and_the_potential_is_told():
    found = [finding(f"{group}.x", 5 + i, now=10.0) for i, group in enumerate("abcd")]
    told = answers(on_gpu(phases={}), found)
    assert by_word(told, "bottlenecks").answer == "About a.x; About b.x; About c.x"
    potential = by_word(told, "How much faster")
    assert potential.answer.startswith("10.0 ms per step could be ")
    assert potential.value > 1.9


def test_nothing_found_is_an_answer():
    told = answers(on_gpu(phases={}))
    assert by_word(told, "bottlenecks").answer.startswith("none")
    assert by_word(told, "How much faster").value == 1.0


def test_every_question_is_always_there():
    one = [answer.question for answer in answer_questions(on_gpu(), (), None)]
    other = [answer.question for answer in answer_questions(case(), (), None)]
    assert one == other
    assert len(one) == 10
