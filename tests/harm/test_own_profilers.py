"""A program that profiles itself gets what it would get without us; our window gives way."""

import pytest
from bare_and_observed import bare_and_observed

OWN = "no kernel window: the program uses torch's profiler itself"
STACKS = "steps are partial: none are observed while the program profiles its Python calls"

SCHEDULED = """
from torch.profiler import ProfilerActivity, profile, schedule

def ready(profiler):
    print(len(profiler.events()))

cycle = schedule(wait=5, warmup=2, active=8, repeat=3)
with profile(activities=[ProfilerActivity.CPU], schedule=cycle, on_trace_ready=ready) as own:
    for _ in range(50):
        print(step())
        own.step()
"""

WHOLE_LOOP = """
with torch.profiler.profile() as own:
    losses = [step() for _ in range(30)]
print(losses, [event.name for event in own.events()])
"""

NOW_AND_THEN = """
for number in range(30):
    if number % 7 == 3:
        with torch.profiler.profile(with_stack=number == 10, record_shapes=True) as own:
            print(step())
        print([event.name for event in own.events() if event.name.startswith("aten")])
    else:
        print(step())
"""

IN_A_STEP = """
for number in range(20):
    optimizer.zero_grad()
    with torch.autograd.profiler.profile(enabled=number >= 7) as own:
        loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item(), own and len(own.function_events))
"""

LEGACY = """
from torch.autograd.profiler_legacy import profile

for number in range(20):
    with profile(enabled=number >= 7) as own:
        print(step())
    print(own and len(own.function_events))
"""

IN_A_THREAD = """
def evaluate():
    with torch.profiler.profile() as own:
        inside.set()
        with torch.no_grad():
            model(torch.ones(8, 16))
    counts.append(len(own.events()))

counts = []
thread = threading.Thread(target=lambda: (reached.wait(), evaluate()))
reached, inside = threading.Event(), threading.Event()
thread.start()
for number in range(200):
    print(step())
    if number == 6:
        reached.set()
        inside.wait()
thread.join()
print(counts)
"""

RANGES = """
for number in range(10):
    with torch.autograd.profiler.emit_itt(enabled=number == 5):
        print(step())
"""

FROM_A_CHILD = """
for number in range(30):
    print(step(), flush=True)
    if number == 6:
        child = os.fork()
        if child == 0:
            with torch.profiler.profile() as own:
                print(step())
            print(len(own.events()))
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "program",
    [SCHEDULED, WHOLE_LOOP, NOW_AND_THEN, IN_A_STEP, LEGACY, IN_A_THREAD],
    ids=["scheduled", "whole_loop", "now_and_then", "in_a_step", "legacy", "in_a_thread"],
)
def test_a_programs_own_profiler_sees_all_its_events_and_we_say_why_we_do_not(tmp_path, program):
    pair = bare_and_observed(tmp_path, program)
    assert pair.bare.exit_code == 0, pair.bare.stderr
    assert pair.same, pair.observed
    assert pair.problems == [OWN, *([STACKS] if program is NOW_AND_THEN else [])]
    assert pair.windows == []


def test_a_window_gives_way_to_ranges_of_the_programs_own(tmp_path):
    pair = bare_and_observed(tmp_path, RANGES, "--window-at", "5", "--window", "3")
    assert pair.bare.exit_code == 0, pair.bare.stderr
    assert pair.same, pair.observed
    assert pair.problems == [OWN]


def test_a_profiler_opened_after_the_window_is_left_alone(tmp_path):
    after = "for _ in range(20):\n    step()\n" + WHOLE_LOOP
    pair = bare_and_observed(tmp_path, after)
    assert pair.same, pair.observed
    assert pair.windows == ["window", "stacks"]
    assert pair.problems == []


def test_a_forked_child_may_profile_itself_inside_the_window(tmp_path):
    pair = bare_and_observed(tmp_path, FROM_A_CHILD)
    assert pair.same, pair.observed
    assert pair.windows == ["window", "stacks"]
