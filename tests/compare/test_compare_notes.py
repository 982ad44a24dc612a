"""What is said beside a verdict."""

from compare_world import item, run, times

from stepscope.compare.document import compare_results
from stepscope.compare.items import Side


def trace(how="ProfilerStep"):
    document = {
        "steps": {"how": how, "count": 1},
        "source": {
            "device": None, "tool": "kineto", "world_size": None, "has": {"device": False}
        },
        "idle_ns": {"host": None},
    }  # fmt: skip
    return Side("trace", "t", document, (item(times(), samples=None, what=None),))


def busy(name, load):
    cpu = {"model": "Some CPU", "usable_cores": 2, "load_average": [load, 1.0, 1.0]}
    return run(name=name, config__machine={"cpu": cpu})


def test_the_first_note_counts_processes_and_steps():
    assert compare_results([run()], [run()])["notes"][0].startswith(
        "one process a side, 120 and 120 steps; no noise floor is known for them: 15%"
    )
    assert compare_results([run(), run(seed=1)], [run()])["notes"][0].startswith(
        "2 and 1 processes"
    )


def test_different_batches_are_said():
    found = compare_results([run()], [run(samples=64.0)])["notes"]
    assert "32 samples a step against 64: times of a sample are compared" in found


def test_what_disturbed_a_run_is_said_with_the_runs_it_befell():
    quiet = busy("a", 1.0)
    found = compare_results([quiet], [busy(name, 6.0) for name in "bcd"])["notes"]
    assert found[1:] == ["the processor had other work: b, c and 1 more"]


def test_throttling_and_other_processes_on_the_gpu_are_said():
    hot = run(name="b", gpu__throttled_by=["power cap"], gpu__other_processes=1.0)
    found = compare_results([run()], [hot])["notes"]
    assert found[1:] == ["clocks were held down by power cap: b", "other processes used the GPU: b"]


def test_phases_that_two_clocks_saw_are_said():
    found = compare_results([run(phases_seen_by="host")], [run(phases_seen_by="device")])["notes"]
    assert "phases are the host's in some runs and the device's in others" in found


def test_recordings_are_said_to_be_some():
    found = compare_results([trace()], [trace("whole")])["notes"]
    assert found[1:] == [
        "times are of recorded steps, which recording makes longer",
        "no steps were found in a recording: it counts as a single one",
    ]
