import pytest

from stepscope.analyze.run.host_code import host_code, read_stacks
from stepscope.record.frames import Frame

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
