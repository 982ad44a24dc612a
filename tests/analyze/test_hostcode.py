import pytest

from stepscope.analyze.run.host_code import host_code, other_time, read_stacks
from stepscope.record.facts import HostSamplesFact, HostStack
from stepscope.record.frames import Frame
from stepscope.record.kinds import SampleWork

STDLIB = "/usr/lib/python3.12"
TORCH = "/venv/lib/python3.12/site-packages/torch"
OURS = "/venv/lib/python3.12/site-packages/stepscope/probe"
SRC = "/src/stepscope"
MAIN = "thread (7): MainThread"


def raw(*rows):
    return "\n".join(rows) + "\n"


def test_frames_are_read_innermost_first_with_their_thread():
    (stack,) = read_stacks(raw(f"{MAIN};<module> (/p/train.py:9);step (/p/train.py:4) 12"))
    assert (stack.tid, stack.thread, stack.samples) == (7, "MainThread", 12)
    assert stack.frames == (Frame("step", "/p/train.py", 4), Frame("<module>", "/p/train.py", 9))


@pytest.mark.parametrize(
    ("row", "thread", "files"),
    [
        (f"{MAIN};f (/a;b c/my hot.py:3) 1", "MainThread", ["/a;b c/my hot.py"]),
        (f"{MAIN};<module> (<string> x;y (z:3):160) 1", "MainThread", ["<string> x;y (z:3)"]),
        ("thread (8): odd; name 5;run (/p/a.py:1) 1", "odd; name 5", ["/p/a.py"]),
        ("thread (8): Thread-1 (work);run (/p/a.py:1) 1", "Thread-1 (work)", ["/p/a.py"]),
        ("thread (0x7FA6);run (/p/a.py:1) 1", "", ["/p/a.py"]),
        ("run (/p/a.py:1) 1", "", ["/p/a.py"]),
        (f"{MAIN};0x7fa (/lib/libc.so.6);g (/p/a b.py:2);at::add (/x/libtorch.so) 1", "MainThread",
         ["/p/a b.py"]),
        (f"{MAIN};Data.<locals>.<genexpr> (C:\\p\\a.py:2) 1", "MainThread", ["C:\\p\\a.py"]),
    ],
)  # fmt: skip
def test_odd_names_do_not_confuse_the_reader(row, thread, files):
    (stack,) = read_stacks(row)
    assert stack.thread == thread
    assert [frame.file for frame in stack.frames] == files


def test_torn_and_native_only_lines_are_passed_over():
    text = raw(
        "", "garbage", f"{MAIN};0x1 (/lib/libc.so.6) 5", f"{MAIN};f (/p/a.py:1) 2", f"{MAIN};f (/p"
    )
    assert [stack.samples for stack in read_stacks(text)] == [2]


def test_time_goes_to_lines_and_functions_with_recursion_counted_once():
    code = host_code(
        raw(
            f"{MAIN};<module> (/p/t.py:9);rec (/p/t.py:3);rec (/p/t.py:3);rec (/p/t.py:4) 30",
            f"{MAIN};<module> (/p/t.py:9);rec (/p/t.py:5) 50",
            f"{MAIN};<module> (/p/t.py:8) 20",
        ),
        rate_hz=100,
    )
    assert code.sampled_s == 1.0
    assert [(f.name, f.own_s, f.cumulative_s, f.samples) for f in code.functions] == [
        ("rec", 0.8, 0.8, 80),
        ("<module>", 0.2, 1.0, 100),
    ]
    assert code.functions[0].line == 5
    assert [(row.line, row.own_s, row.cumulative_s) for row in code.lines] == [
        (5, 0.5, 0.5),
        (4, 0.3, 0.3),
        (8, 0.2, 0.2),
        (9, 0.0, 0.8),
        (3, 0.0, 0.3),
    ]


def test_frames_of_the_observer_are_folded_away_and_its_share_stated():
    start = f"{MAIN};main ({SRC}/probe/__main__.py:3);<module> (/p/t.py:9)"
    code = host_code(
        raw(
            f"{start};call ({SRC}/probe/points/module.py:5);forward ({TORCH}/nn/linear.py:7) 60",
            f"{start};write ({SRC}/store/facts.py:5);dumps ({STDLIB}/json/__init__.py:2) 10",
            f"{start};tick ({OURS}/log.py:5) 10",
            f"{start};call ({SRC}/probe/points/loader.py:1);__getitem__ (/p/data.py:2) 20",
        )
    )
    assert code.observer_share == pytest.approx(0.2)
    shown = {row.file for row in code.lines} | {f.file for f in code.functions}
    assert shown == {"/p/t.py", f"{TORCH}/nn/linear.py", "/p/data.py"}
    assert code.lines[0].function == "forward"
    assert max(f.cumulative_s for f in code.functions) == pytest.approx(0.8)


def test_built_in_programs_are_the_users_code_not_the_observers():
    code = host_code(f"{MAIN};<module> (/site-packages/stepscope/workloads/slow.py:4) 5")
    assert code.observer_share == 0
    assert code.lines[0].line == 4


def test_waiting_is_stated_and_never_the_hottest_line():
    wait = f"get ({STDLIB}/queue.py:171);Condition.wait ({STDLIB}/threading.py:355)"
    code = host_code(
        raw(f"{MAIN};<module> (/p/t.py:9);{wait} 90", f"{MAIN};<module> (/p/t.py:9) 10")
    )
    assert (code.sampled_s, code.waiting_s) == (1.0, 0.9)
    assert (code.lines[0].line, code.lines[0].own_s, code.lines[0].cumulative_s) == (9, 0.1, 1.0)
    assert sum(row.own_s for row in code.lines) == pytest.approx(0.1)


def test_a_function_of_the_program_named_wait_is_work():
    code = host_code(f"{MAIN};wait (/p/threading.py:3) 5")
    assert (code.waiting_s, code.lines[0].own_s) == (0, 0.05)


def test_other_threads_are_told_apart_from_the_main_one():
    text = raw(
        "thread (7): renamed;<module> (/p/t.py:9) 50",
        "thread (9): feeder;feed (/p/t.py:20) 80",
        f"thread (9): feeder;wait ({STDLIB}/threading.py:355) 20",
    )
    code = host_code(text, pid=7)
    assert [row.line for row in code.lines] == [9]
    assert [(t.name, t.main, t.busy_s, t.waiting_s) for t in code.threads] == [
        ("renamed", True, 0.5, 0.0),
        ("feeder", False, 0.8, 0.2),
    ]
    assert code.threads[1].hottest is not None
    assert code.threads[1].hottest.line == 20


def test_an_empty_recording_gives_an_empty_result():
    code = host_code("")
    assert (code.sampled_s, code.functions, code.threads) == (0, [], [])


TRAIN = "/p/train.py"


def seen(ns, *frames, phase="other", **more):
    """A stack: (line, function) of train.py, outermost first."""
    told = [[TRAIN, line, function] for line, function in frames]
    return HostStack(phase=phase, frames=told, ns=ns, **more)


def other(*stacks, loop=()):
    fact = HostSamplesFact(first=5, last=8, steps=4, samples=100, stacks=list(stacks))
    return other_time(fact, [(TRAIN, name) for name in loop])


COMPUTING = seen(40, (50, "main"), (60, "train"), phase="forward")


def test_a_function_the_loop_calls_is_named_with_its_costliest_line():
    told = other(
        COMPUTING,
        seen(30, (50, "main"), (58, "train"), (31, "get_batch")),
        seen(20, (50, "main"), (58, "train"), (33, "get_batch"), (33, "<listcomp>")),
        seen(10, (50, "main"), (66, "train")),
    )
    assert (told.steps, told.samples, told.share) == (4, 100, pytest.approx(0.6))
    first, second = told.code
    assert (first.function, first.file, first.line) == ("get_batch", TRAIN, 31)
    assert (first.first_line, first.last_line, first.called_at) == (31, 33, 58)
    assert (first.share, first.line_share) == (pytest.approx(5 / 6), pytest.approx(0.5))
    assert (second.function, second.line, second.share) == (None, 66, pytest.approx(1 / 6))


def test_neighbouring_lines_of_the_loop_are_one_piece_of_code_others_are_not():
    lines = [seen(n, (line, "<module>")) for n, line in ((10, 20), (30, 22), (5, 25), (8, 40))]
    first, second = other(*lines, loop=["<module>"]).code
    assert (first.function, first.line, first.first_line, first.last_line) == (None, 22, 20, 25)
    assert (second.line, second.first_line, second.last_line) == (40, 40, 40)


def test_a_function_that_does_most_of_anothers_work_stands_for_it():
    deep = [(58, "train"), (31, "get_batch"), (12, "load")]
    told = other(COMPUTING, seen(90, *deep), seen(10, *deep[:2]))
    assert [one.function for one in told.code] == ["load"]
    assert told.code[0].share == pytest.approx(1.0)
    told = other(COMPUTING, seen(60, *deep), seen(40, *deep[:2]))
    assert [one.function for one in told.code] == ["get_batch"]


def test_what_a_function_does_to_make_samples_is_kept():
    at = (58, "train"), (31, "get_batch")
    told = other(
        COMPUTING,
        seen(60, *at, work=SampleWork.DECODING, calls="PIL.ImageFile.ImageFile.load"),
        seen(20, *at, work=SampleWork.READING),
        seen(20, *at),
    )
    assert told.code[0].works == pytest.approx({SampleWork.DECODING: 0.6, SampleWork.READING: 0.2})
    assert told.code[0].calls == "PIL.ImageFile.ImageFile.load"


def test_recursion_and_stacks_without_the_programs_code_do_not_confuse():
    again = [(58, "train"), *[(9, "walk")] * 5]
    told = other(COMPUTING, seen(10, *again), seen(5))
    assert [one.function for one in told.code] == ["walk"]
    assert other(seen(5)).code == []
    assert other_time(None, ()) is None


def test_torchs_own_work_around_phases_is_not_the_programs():
    step = seen(30, (66, "train"), calls="torch.optim.optimizer.Optimizer.profile_hook_step")
    told = other(COMPUTING, step, seen(10, (58, "train"), (31, "get_batch")), loop=["train"])
    assert told.around == pytest.approx(0.75)
    assert [(one.function, one.share) for one in told.code] == [("get_batch", pytest.approx(0.25))]


def test_code_that_was_generated_is_part_of_what_calls_it():
    made = seen(10, (58, "train"))
    made.frames.append(["<eval_with_key>.3", 6, "forward"])
    (one,) = other(COMPUTING, made, loop=["train"]).code
    assert (one.function, one.line) == (None, 58)


def test_what_calls_the_loop_is_not_taken_for_its_code():
    told = other(seen(10, (80, "<module>"), (58, "train"), (31, "get_batch")), loop=["train"])
    (one,) = told.code
    assert (one.function, one.called_at) == ("get_batch", 58)
