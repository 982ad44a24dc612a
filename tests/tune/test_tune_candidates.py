"""What is tried on a program, in which order, and why the rest is not."""

import pytest
from documents import made

from stepscope.analyze.run.document import RunSummary
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.data.workers import most_workers
from stepscope.fixes.registry import FIX_NAMES, fix_named
from stepscope.measure.prediction import Prediction, no_prediction, predicted_by_findings
from stepscope.record.trial import Rejection, RejectReason
from stepscope.report.story.tune.words import rejection_text
from stepscope.tune.document import RejectedFix
from stepscope.tune.search.candidates import (
    Candidate,
    by_expected_gain,
    exclude_each_other,
    find_candidates,
    fix_name,
    setup_seconds,
    with_candidate,
)


def loader(**more):
    usual = {"batch_size": 32, "num_workers": 0, "pin_memory": False, "persistent_workers": False}
    return {**usual, "drop_last": False, **more}


def scout(device="cuda", loaders=None, **more):
    """A run with its findings, as far as the search looks at it."""
    model = {"dtypes": {"float32": 9}, "memory_format": "contiguous", "compiled": False}
    switches = {
        "tf32_matmul": "highest",
        "tf32_cudnn": True,
        "cudnn_benchmark": False,
        "cudnn_deterministic": False,
        "deterministic": False,
    }
    config = {
        "models": [model],
        "autocast": None,
        "switches": switches,
        "optimizers": [{"name": "SGD", "foreach": None, "fused": None}],
        "machine": {"cpu": {"usable_cores": 16}, "gpus": [{"compute_capability": "9.0"}]},
    }
    found = {
        "run": {"device": device},
        "gpu": {"busy_fraction": 0.5} if device == "cuda" else None,
        "steps": {"mean_ms": 50.0, "what": "training"},
        "phases_ms": {"data_wait": 20.0},
        "loaders": [loader()] if loaders is None else loaders,
        "syncs": [{"what": "synchronize"}, {"what": "item"}],
        "findings": [],
        "minor": [],
    }
    for part in ("switches", "model"):
        {"switches": switches, "model": model}[part].update(more.pop(part, {}))
    config.update(more.pop("config", {}))
    return ObservedProgram({**found, "config": config, **more})


def finding(name, value=None, speedup=None, kind="exact", also=(), rule="data.x", scope="step"):
    predicted = speedup and {"speedup": speedup, "low": speedup * 0.9, "high": speedup * 1.1}
    return {
        "id": rule,
        "fix": {"name": name, "value": value},
        "also": [{"name": other, "value": None} for other in also],
        "predicted": predicted,
        "kind": kind,
        "scope": scope,
    }


def tried(program, **more):
    return [one.fix for one in find_candidates(program, **more)[0] if not one.along]


def left(program, **more):
    return {one.fix: one.why for one in find_candidates(program, **more)[1]}


def told(one):
    return rejection_text(RejectedFix(fix=one.fix, state=one.why.state, because=one.why))


def first_values(name, program, proposed):
    return fix_named(name).first_values(program, proposed)


def test_every_fix_is_tried_or_left_out_with_a_reason():
    found, out = find_candidates(scout())
    names = [one.name for one in found if not one.along]
    assert sorted([*names, *(one.fix for one in out)]) == sorted(FIX_NAMES)
    assert all(told(one) for one in out)


def test_without_a_cuda_device_what_needs_one_is_left_out():
    out = left(scout("cpu"))
    for name in ("pin", "prefetch", "nosync", "lazyitem", "tf32", "cuda_graph", "affinity"):
        assert out[name] == Rejection(RejectReason.NEEDS_DEVICE, "cuda")
    assert {"workers=12", "amp=bf16", "compile=default"} <= set(tried(scout("cpu")))


def test_larger_predicted_gains_per_second_come_first_and_unknown_ones_last():
    gains = {"amp=bf16": 1.5, "compile=reduce-overhead": 1.6, "pin": 1.1, "tf32=on": 1.0}

    def see(base, other):
        speedup = gains.get(other[-1])
        return speedup and Prediction(speedup, speedup, speedup)

    found = tried(scout(), predict=see)
    assert found[:3] == ["amp=bf16", "pin", "compile=reduce-overhead"]
    assert found[-1] == "tf32=on"


def test_compiling_costs_more_than_other_trials():
    assert setup_seconds("pin", "cuda") == 0
    assert (
        setup_seconds("compile=max-autotune", "cuda")
        > setup_seconds("compile=default", "cuda")
        > 10
    )
    gain = Prediction(1.5, 1.4, 1.6)
    compiled = Candidate("compile=default", "numeric", gain, extra_s=35.0)
    plain = Candidate("amp=bf16", "numeric", Prediction(1.2, 1.1, 1.3))
    assert by_expected_gain([compiled, plain], base_s=5.0) == [plain, compiled]
    assert by_expected_gain([compiled, plain], base_s=500.0) == [compiled, plain]


def test_small_gains_which_take_many_trials_to_settle_come_after_one_that_compiles():
    small = Candidate("pin", "exact", Prediction(1.05, 1.0, 1.1))
    compiled = Candidate("compile=default", "numeric", Prediction(1.2, 1.1, 1.3), extra_s=35.0)
    assert by_expected_gain([small, compiled], base_s=8.0) == [compiled, small]
    assert by_expected_gain([small, compiled], base_s=1.0) == [small, compiled]


@pytest.mark.parametrize(
    ("allow", "has", "lacks"),
    [
        ("exact", {"pin", "nosync"}, {"amp=bf16", "batch=64"}),
        ("numeric", {"pin", "amp=bf16"}, {"batch=64"}),
        ("semantic", {"pin", "amp=bf16", "batch=64"}, {"accumulate=2"}),
    ],
)
def test_fixes_go_as_far_as_is_allowed(allow, has, lacks):
    found = set(tried(scout(), allow=allow))
    assert has <= found
    assert not lacks & found
    if allow == "numeric":
        assert left(scout(), allow=allow)["batch"] == Rejection(
            RejectReason.NOT_ALLOWED, "semantic"
        )


def test_a_finding_of_too_few_workers_names_the_fewest_and_more_are_begun_with_beside_a_gpu():
    assert first_values("workers", scout(), "4") == ["12"]
    assert first_values("workers", scout("cpu"), "4") == ["4"]
    assert first_values("workers", scout(loaders=[loader(num_workers=15)]), "6") == ["6"]


def test_workers_that_change_random_draws_are_not_exact():
    document = scout(findings=[finding("workers", "14", 2.0, kind="numeric")])
    assert "workers=14" in tried(document)
    assert left(document, allow="exact")["workers"] == Rejection(
        RejectReason.NOT_ALLOWED, "numeric"
    )


def test_only_and_skip_choose_by_name_or_value():
    assert tried(scout(), only=("pin", "workers=3")) == ["pin", "workers=3"]
    assert set(tried(scout(), only=("workers=3", "workers=6"))) == {"workers=3", "workers=6"}
    assert "amp=bf16" not in tried(scout(), skip=("amp",))
    assert left(scout(), skip=("amp",))["amp"].reason == RejectReason.SKIPPED
    assert tried(scout("cpu"), only=("pin",)) == []
    assert tried(scout(), only=("batch",)) == []


def test_what_is_in_place_already_is_left_out():
    document = scout(
        loaders=[loader(num_workers=16, persistent_workers=True)],
        switches={"tf32_matmul": "high", "cudnn_benchmark": True},
        model={"memory_format": "channels_last", "compiled": True},
        config={"autocast": "bfloat16", "optimizers": [{"foreach": None, "fused": True}]},
        syncs=[],
    )
    out = left(document)
    for name in (
        "workers", "persistent", "tf32", "cudnn_benchmark", "channels_last", "compile",
        "cuda_graph", "amp", "fused_optimizer", "foreach", "nosync", "lazyitem",
    ):  # fmt: skip
        assert name in out, name
    assert out["amp"] == Rejection("own_autocast", "bfloat16")
    assert set(tried(document)) == {"pin", "prefetch", "recycle", "sdpa"}


def test_without_loaders_nothing_is_tried_on_them():
    out = left(scout(loaders=[]), allow="semantic")
    for name in (
        "workers", "persistent", "pin", "prefetch", "recycle", "cache", "batch", "drop_last",
    ):  # fmt: skip
        assert out[name].reason == RejectReason.NO_LOADER


@pytest.mark.parametrize(
    ("dims", "idle"),
    [([], {"channels_last", "cudnn_benchmark"}), ([1], {"channels_last"}), ([2], {})],
)
def test_models_without_convolutions_have_no_use_for_what_is_done_to_them(dims, idle):
    said = left(scout(model={"convolved_dims": dims}))
    without = ("no_convolutions", "no_image_convolutions")
    assert {name for name in said if said[name].reason in without} == set(idle)


def test_models_without_attention_are_not_tried_with_another_unless_a_finding_knows_better():
    without = {"model": {"attends": False}}
    assert left(scout(**without))["sdpa"].reason == "no_attention"
    assert "sdpa" in tried(scout(model={"attends": True}))
    assert "sdpa" in tried(scout(**without, findings=[finding("sdpa", kind="numeric")]))


def test_waits_of_other_kinds_leave_nothing_to_do_for_a_fix():
    out = left(scout(syncs=[{"what": "Event.synchronize"}, {"what": "to('cpu')"}]))
    assert {"nosync", "lazyitem"} <= set(out)


def test_steps_that_hardly_wait_for_data_need_no_workers():
    assert "workers" in left(scout(phases_ms={"data_wait": 0.2}))
    busy = scout(phases_ms={"data_wait": 0.2}, loaders=[loader(num_workers=4)])
    assert "workers=12" in tried(busy)


def test_inference_has_no_optimizer_to_fuse_and_nothing_to_capture():
    document = scout(steps={"mean_ms": 5.0, "what": "inference"}, config={"optimizers": []})
    out = left(document)
    assert {"fused_optimizer", "foreach", "cuda_graph"} <= set(out)
    assert "compile=reduce-overhead" in tried(document)


@pytest.mark.parametrize("name", ["persistent", "recycle"])
def test_what_is_of_workers_waits_for_workers(name):
    found = {one.name: one for one in find_candidates(scout())[0]}
    assert found[name].after == "workers"
    have = {one.name: one for one in find_candidates(scout(loaders=[loader(num_workers=2)]))[0]}
    assert have[name].after is None
    assert left(scout(), skip=("workers",))[name] == Rejection(RejectReason.REQUIRES, "workers")


def test_memory_of_small_batches_is_not_recycled():
    steps = {"mean_ms": 50.0, "what": "training"}
    out = left(scout(steps=steps | {"batch_bytes": 98_304}))
    assert out["recycle"] == Rejection("small_batches", 98_304)
    assert "recycle" in tried(scout(steps=steps | {"batch_bytes": 19_267_584}))


def test_keeping_samples_is_tried_where_the_program_waits_for_data_in_a_second_epoch():
    sites = [{"what": "epoch_start", "count": 2, "file": "a.py", "line": 1}]
    waiting = {"phases_ms": {"data_wait": 4.0, "forward": 6.0}, "loaders": [{"num_workers": 0}]}
    assert "cache" in tried(scout(sites=sites, **waiting))
    assert "cache" in left(scout(**waiting))


def test_some_fixes_are_tried_only_where_a_finding_names_them():
    assert {"threads", "cache", "affinity"} <= set(left(scout()))
    named = scout(findings=[finding("threads", "2"), finding("cache", also=("affinity",))])
    assert {"threads=2", "cache", "affinity"} <= set(tried(named))


def test_memory_is_saved_by_other_fixes_than_time():
    assert left(scout())["checkpointing"].reason == RejectReason.SAVES_MEMORY_ONLY
    found = tried(scout(), objective="memory", allow="semantic")
    assert {"checkpointing", "expandable_segments", "accumulate=2"} <= set(found)


def test_findings_predict_where_nothing_is_replayed():
    document = scout(
        findings=[finding("workers", "8", 2.0), finding("batch", "64", 4.0, scope="run")]
    )
    assert predicted_by_findings(made(RunSummary, findings=document.document["findings"])) == {
        "workers=8": Prediction(2.0, 1.8, 2.2)
    }
    assert no_prediction((), ("workers=8",)) is None


def test_values_fit_the_machine():
    assert first_values("workers", scout(), None) == ["12"]
    assert first_values("workers", scout(), "14") == ["14"]
    assert first_values("batch", scout(), None) == ["64"]
    assert first_values("batch", scout(loaders=[]), None) == []
    old = {"machine": {"cpu": {}, "gpus": [{"compute_capability": "7.5"}]}}
    assert first_values("amp", scout(config=old), None) == ["fp16"]


def test_refined_values_stay_within_what_the_machine_has():
    assert fix_named("workers").other_values("4", scout()) == ["8", "2"]
    assert fix_named("workers").other_values("12", scout()) == ["16", "6"]
    assert fix_named("workers").other_values("16", scout()) == ["8"]
    waits = scout(findings=[finding("workers", "16", rule="data.slow_storage")])
    assert most_workers(waits) == 64
    assert fix_named("workers").other_values("16", waits) == ["32", "8"]
    assert fix_named("workers").other_values("1", scout()) == ["2"]
    assert fix_named("compile").other_values("default", scout()) == [
        "reduce-overhead",
        "max-autotune",
    ]
    assert fix_named("compile").other_values("default", scout("cpu")) == []
    assert fix_named("pin").other_values("", scout()) == []


def test_fixes_that_exclude_each_other_take_each_others_place():
    assert exclude_each_other("cuda_graph", "compile=default")
    assert exclude_each_other("compile=default", "cuda_graph")
    assert exclude_each_other("workers=2", "workers=4")
    assert not exclude_each_other("pin", "workers=4")
    for present, new, left in (
        (("pin", "cuda_graph"), "compile=default", ("pin", "compile=default")),
        (("workers=2", "pin"), "workers=4", ("pin", "workers=4")),
    ):
        assert with_candidate(present, Candidate(new, "numeric")) == left


def test_half_precision_is_tried_with_channels_last_as_one_and_each_alone():
    found, _ = find_candidates(scout())
    ways = [one.whole for one in found if {"amp", "channels_last"} & set(map(fix_name, one.whole))]
    assert ("amp=bf16", "channels_last") in ways
    assert {("amp=bf16",), ("channels_last",)} < set(ways)
    on_cpu, _ = find_candidates(scout("cpu"), skip=("channels_last",))
    assert all(not one.along for one in on_cpu)


@pytest.mark.parametrize(
    ("samples", "size", "along"),
    [
        (3200, 98_304, ["persistent"]),
        (32000, 19_267_584, ["recycle"]),
        (3200, 19_267_584, ["persistent", "recycle"]),
        (32000, 98_304, []),
        (None, None, []),
    ],
)
def test_workers_are_tried_with_what_they_need(samples, size, along):
    steps = {"mean_ms": 50.0, "what": "training", "batch_bytes": size}
    document = scout(loaders=[loader(samples=samples)], steps=steps)
    found, _ = find_candidates(document, predict=lambda _, other: Prediction(len(other), 1.0, 9.0))
    sets = [one for one in found if one.fix == "workers=12" and one.along]
    assert [[*one.along] for one in sets] == ([along] if along else [])
    assert [one.predicted.speedup for one in sets] == [1 + len(along)] * bool(along)
    assert "workers=12" in [one.fix for one in found if not one.along]


@pytest.mark.parametrize("launches", ["cuda_graph", "compile=reduce-overhead"])
def test_on_a_gpu_both_are_tried_with_what_takes_launches_away_too(launches):
    all_three = ("amp=bf16", "channels_last", launches)
    found, _ = find_candidates(
        scout(), predict=lambda base, other: Prediction(len(other), 1.0, 9.0)
    )
    (one,) = [one for one in found if one.whole == all_three]
    assert (one.kind, one.predicted.speedup) == ("numeric", 3)
    assert one.extra_s == setup_seconds(launches, "cuda")


def test_what_needs_no_compiler_is_tried_first_and_models_without_convolutions_need_two():
    found, _ = find_candidates(
        scout(), predict=lambda base, other: Prediction(len(other), 1.0, 9.0)
    )
    sets = [one.along for one in found if one.fix == "amp=bf16" and one.along]
    assert sets == [
        ("channels_last", "cuda_graph"),
        ("channels_last",),
        ("channels_last", "compile=reduce-overhead"),
    ]
    found, _ = find_candidates(scout(), skip=("channels_last",))
    assert [one.along for one in found if one.along] == [("cuda_graph",)]


def test_without_a_gpu_no_set_takes_launches_away():
    on_cpu, _ = find_candidates(scout("cpu"))
    assert {len(one.along) for one in on_cpu} == {0, 1}


def test_what_the_program_itself_speaks_against_is_not_tried():
    record = {"reason": "recurrent", "target": "model", "object": "Net", "code": "lstm"}
    checks = [
        {"name": "cuda_graph", "refused": record, "text": "Net: lstm is recurrent"},
        {"name": "compile", "refused": None, "text": None},
        {"name": "persistent", "refused": {"reason": "has_no_workers"}, "text": "no workers"},
    ]
    found, left = find_candidates(scout(fix_checks=checks))
    why = {one.fix: one.why for one in left}
    assert why["cuda_graph"] == Rejection("recurrent")
    assert why["cuda_graph"].text == "Net: lstm is recurrent"
    assert "compile" in {one.name for one in found}
    assert "persistent" in {one.name for one in found}, "the workers it lacks are tried with it"
    assert "cuda_graph" in {one.name for one in find_candidates(scout())[0]}
