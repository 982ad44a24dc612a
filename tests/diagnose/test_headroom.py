"""What the step could take."""

import pytest
from diagnosing import Parts, case, finding

from stepscope.diagnose.headroom import compatible, headroom
from stepscope.record.finding import FixRef


def test_changes_are_replayed_together():
    model = Parts(data=40.0, sync=10.0, rest=50.0)
    found = [
        finding("data.a", 60, changes=("data",), fix=FixRef("workers", "4")),
        finding("sync.b", 90, changes=("sync",)),
    ]
    could = headroom(found, case(model=model))
    assert could.step_ms == pytest.approx(50)
    assert could.replayed
    assert could.by == ("data.a", "sync.b")
    assert could.text == "100 ms per step could be 50.0 ms (2.0×), mostly from workers=4"


def test_gains_that_hide_behind_each_other_are_not_added():
    class Longest(Parts):
        def replay(self, *changes):
            left = [ms for name, ms in self.parts.items() if name not in changes]
            return type("Replayed", (), {"step_ms": max(left)})()

    model = Longest(host=40.0, device=35.0)
    model.step_ms = 40.0
    found = [finding("launch.a", 35, now=40.0, changes=("host",))]
    assert headroom(found, case(40.0, model=model)).step_ms == 35


def test_without_a_window_gains_of_different_groups_add_up():
    found = [finding("data.a", 60), finding("data.b", 70), finding("sync.c", 90)]
    could = headroom(found, case())
    assert could.step_ms == pytest.approx(50)
    assert not could.replayed


def test_the_device_must_still_do_its_work():
    show = {"gpu": {"busy_fraction": 0.6}}
    found = [finding("data.a", 70), finding("sync.b", 80)]
    assert headroom(found, case(show=show, device="cuda")).step_ms == pytest.approx(60)


def test_of_fixes_that_do_not_go_together_the_first_counts():
    cache = finding("data.a", 50, fix=FixRef("cache"))
    workers = finding("data.b", 60, fix=FixRef("workers", "4"))
    assert compatible([cache, workers]) == [cache]
    assert compatible([workers, cache]) == [workers]


def test_a_fix_is_applied_once():
    one = finding("data.a", 50, fix=FixRef("workers", "4"))
    two = finding("machine.b", 60, fix=FixRef("workers", "2"))
    assert compatible([one, two]) == [one]


def test_training_is_not_changed_for_it_and_the_run_is_no_step():
    larger = finding("memory.batch", 50, kind="semantic")
    saving = finding("run.saving", 50, scope="run")
    told = finding("machine.throttled")
    assert headroom([larger, saving, told], case()) is None


def test_most_names_as_many_as_make_up_half():
    found = [finding("data.a", 80), finding("sync.b", 82), finding("launch.c", 85)]
    text = headroom(found, case()).text
    assert text.endswith("mostly from removing “About data.a” and removing “About sync.b”")
