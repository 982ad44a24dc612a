"""Findings promise only fixes that the program itself has nothing against, and none that it was run
with already."""

import pytest
from cases import case, idle_for_host, show, trace
from diagnosing import Parts, finding
from diagnosing import case as plain_case
from msgspec.structs import replace
from rulings import findings_of, only
from subjects import of_document

from stepscope.analyze.run.document import to_json
from stepscope.diagnose.case import rule
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.headroom import compatible, headroom
from stepscope.diagnose.rules import compute_precision
from stepscope.record.finding import FixRef, Setting, SettingOwner
from stepscope.report.story.run.story import run_screen

RECURRENT = {"reason": "recurrent", "target": "model", "object": "Net", "code": "lstm"}
SENTENCE = "Net: lstm is recurrent and keeps state that a graph cannot restore"


def refused(name, record=RECURRENT, text=SENTENCE):
    return {"name": name, "refused": record, "text": text}


def applied(name, value=None, state="applied"):
    return {"name": name, "value": value, "state": state, "kind": "exact", "where": [],
            "reasons": [], "applied": [], "not_applied": [], "broke": None}  # fmt: skip


def launch_bound(*checks, fixes=()):
    """A run whose GPU waits for launches; every replay takes 8 of 20 ms."""
    given = show(fix_checks=[*checks], fixes=[*fixes], run={"argv": []})
    return case(show=given, trace=idle_for_host(6.0), after=8.0)


def test_without_answers_a_graph_is_promised():
    one = only("launch.launch_bound", launch_bound())
    assert str(one.fix) == "cuda_graph"
    assert one.predicted.speedup == pytest.approx(2.5)
    assert one.refused == ()


def test_a_fix_that_says_nothing_against_it_is_promised():
    one = only("launch.launch_bound", launch_bound(refused("cuda_graph", None, None)))
    assert str(one.fix) == "cuda_graph"


def test_where_no_graph_can_be_made_compiling_is_promised_and_it_is_said_why():
    one = only("launch.launch_bound", launch_bound(refused("cuda_graph")))
    assert str(one.fix) == "compile=reduce-overhead"
    assert one.predicted is not None
    assert [(str(each.fix), each.record, each.text) for each in one.refused] == [
        ("cuda_graph", RECURRENT, SENTENCE)
    ]
    assert "CUDA graph" not in one.advice


def test_where_neither_applies_nothing_is_promised():
    compiles = {"reason": "program_compiles", "target": "model", "object": "Net"}
    given = launch_bound(refused("cuda_graph"), refused("compile", compiles, "Net: …"))
    one = only("launch.launch_bound", given)
    assert one.fix is None
    assert one.predicted is None
    assert [each.record["reason"] for each in one.refused] == ["recurrent", "program_compiles"]
    found = diagnose(given)
    assert found.headroom is None or "launch.launch_bound" not in found.headroom.by


def test_the_card_says_why_not():
    given = launch_bound(refused("cuda_graph"))
    found = diagnose(given)
    document = to_json(replace(given.show, findings=found.findings, headroom=found.headroom))
    text = str(run_screen(of_document("run", "run", document)))
    assert f"cuda_graph does not apply ({SENTENCE})." in text


def one_finding(given, **more):
    """What is handed out of one finding of a rule."""
    told = finding("data.x", 10.0, now=20.0, **more)
    found = diagnose(given, [rule("data.x", "Because.")(lambda case: [told])])
    (first,) = (*found.findings, *found.minor)
    return first, found


@pytest.mark.parametrize("name", ["workers", "pin", "fused_optimizer", "sdpa", "amp", "recycle"])
def test_a_fix_that_would_be_refused_is_not_promised(name):
    given = case(show=show(fix_checks=[refused(name)]))
    first, found = one_finding(given, fix=FixRef(name))
    assert first.fix is None
    assert first.predicted is None
    assert first.refused[0].fix.name == name
    assert found.headroom is None
    promised, found = one_finding(case(show=show()), fix=FixRef(name))
    assert promised.fix is not None
    assert found.headroom.by == ("data.x",)


def test_the_argument_of_a_refused_fix_is_not_advised():
    settings = tuple(
        Setting(SettingOwner.LOADER, name, "8") for name in ("num_workers", "prefetch_factor")
    )
    given = case(show=show(fix_checks=[refused("workers")]))
    first, _ = one_finding(given, fix=FixRef("workers", "8"), settings=settings)
    assert [one.name for one in first.settings] == ["prefetch_factor"]


def test_a_fix_is_not_promised_to_a_run_that_has_it():
    given = case(show=show(fixes=[applied("workers", 8)]))
    same, _ = one_finding(given, fix=FixRef("workers", "8"))
    other, _ = one_finding(given, fix=FixRef("workers", "12"))
    assert same.fix is None
    assert same.predicted is None
    assert same.refused == ()
    assert str(other.fix) == "workers=12"


def test_what_was_asked_for_and_not_applied_may_be_promised():
    given = case(show=show(fixes=[applied("pin", state="not applicable")]))
    first, _ = one_finding(given, fix=FixRef("pin"))
    assert str(first.fix) == "pin"


def test_an_applied_fix_does_not_speak_against_itself():
    already = {"reason": "program_compiles", "target": "model", "object": "Net"}
    checks = [refused("compile", already, "Net: the program compiles it itself")]
    given = case(show=show(fix_checks=checks, fixes=[applied("compile", "default")]))
    first, _ = one_finding(given, fix=FixRef("compile", "default,dynamic"))
    assert str(first.fix) == "compile=default,dynamic"


def test_half_precision_that_is_on_is_not_found_missing(monkeypatch):
    monkeypatch.setattr(compute_precision.facts, "fix_changes", lambda *_: [])
    monkeypatch.setattr(compute_precision.facts, "operators_ms", lambda *_: 20.0)

    def found(**more):
        return findings_of(
            "compute.low_precision",
            case("cpu", show=show("cpu", **more), trace=trace("cpu"), after=10.0),
        )

    assert [str(one.fix) for one in found()] == ["amp=bf16"]
    assert found(fixes=[applied("amp", "bf16")]) == []
    assert [str(one.fix) for one in found(fixes=[applied("amp", "bf16", "broke")])] == ["amp=bf16"]


def test_tf32_where_the_program_uses_autocast_in_part(monkeypatch):
    monkeypatch.setattr(compute_precision, "_wide_ms", lambda case: (10.0, ()))
    own = {"reason": "own_autocast"}
    for name, checks, expected in (
        ("amp", [], "amp=bf16"),
        ("amp", [refused("amp", own, "the program uses autocast")], "tf32=on"),
        ("tf32", [refused("tf32", own, "no")], "amp=bf16"),
    ):
        monkeypatch.setattr(compute_precision.facts, "fix_changes", lambda case, fix, value: [fix])
        given = show(config={"autocast": None}, fix_checks=checks)
        one = case(
            show=given, trace=trace(), after=lambda *asked: 10.0 if asked[0] == "amp" else 14.0
        )
        (told,) = findings_of("compute.low_precision", one)
        assert str(told.fix) == expected, name
        assert ("autocast" in told.advice) == (expected == "amp=bf16")


def test_the_headroom_leaves_out_what_excludes_an_applied_fix():
    model = Parts(launch=30.0, sync=10.0, rest=60.0)
    found = [
        finding("launch.a", 70, changes=("launch",), fix=FixRef("compile", "default")),
        finding("sync.b", 90, changes=("sync",), fix=FixRef("nosync")),
    ]
    graphed = plain_case(model=model, show={"fixes": [applied("cuda_graph")]})
    assert headroom(found, plain_case(model=model)).by == ("launch.a", "sync.b")
    assert headroom(found, graphed).by == ("sync.b",)


def test_another_value_of_an_applied_fix_goes_together_with_it():
    more = finding("data.a", 50, fix=FixRef("workers", "8"))
    assert compatible([more], ["workers"]) == [more]
    assert compatible([more], ["cache"]) == []
