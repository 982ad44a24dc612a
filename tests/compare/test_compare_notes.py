"""What is said beside a verdict."""

from compare_world import run
from documents import made

from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.compare.document import compare_results
from stepscope.compare.sides import trace_side
from stepscope.report.story.compare import notes


def trace(how="ProfilerStep"):
    each = [{"start_ns": 10_000_000 * n, "end_ns": 10_000_000 * (n + 1)} for n in range(9)]
    steps = {"how": how, "count": len(each), "each": each}
    return trace_side("t", made(TraceAnalysis, steps=steps, idle_ns={"host": None}))


def busy(name, load):
    cpu = {"model": "Some CPU", "usable_cores": 2, "load_average": [load, 1.0, 1.0]}
    return run(name=name, config__machine={"cpu": cpu})


def told(base, other):
    return list(notes(compare_results(base, other)))


def test_the_first_note_counts_processes_and_steps():
    assert told([run()], [run()])[0].startswith(
        "1 process per side, 120 and 120 steps; noise floor unknown, 15% assumed"
    )
    assert told([run(), run(seed=1)], [run()])[0].startswith("2 and 1 processes")


def test_different_batch_sizes_are_said():
    assert "32 against 64 samples per step: times are per sample." in told(
        [run()], [run(samples=64.0)]
    )


def test_a_busy_host_is_said_with_the_runs_it_affected():
    found = told([busy("a", 1.0)], [busy(name, 6.0) for name in "bcd"])
    assert "Other processes kept the CPU busy: b, c and 1 more." in found


def test_throttling_and_other_processes_on_the_gpu_are_said():
    hot = run(name="b", gpu__throttled_by=["power cap"], gpu__other_processes=1.0)
    found = told([run()], [hot])
    assert "Throttled by power cap: b." in found
    assert "Other processes used the GPU: b." in found


def test_phases_of_different_clocks_are_said():
    found = told([run(phases_seen_by="host")], [run(phases_seen_by="device")])
    assert "Phases: host times in some runs, device times in others." in found


def test_recordings_are_said_to_be_slower():
    found = told([trace()], [trace("whole")])
    assert found[1:3] == [
        "Times are of recorded steps, which recording slows down.",
        "No steps found in a recording: it counts as one step.",
    ]


def test_an_unclear_verdict_says_what_would_settle_it():
    assert told([run()], [run()])[-1] == ("To settle it: stepscope run --repeat 3 … on each side")
