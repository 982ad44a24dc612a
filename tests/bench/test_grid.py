"""Grids: variants, ablations, points."""

import pytest

from stepscope.bench.grid import (
    BenchRequest,
    Variant,
    ablation_variants,
    fix_variants,
    grid_points,
    split_fixes,
)
from stepscope.record.errors import UsageError


@pytest.mark.parametrize(
    ("text", "fixes"),
    [
        ("none", ()),
        ("tf32", ("tf32",)),
        ("amp=bf16,tf32", ("tf32", "amp=bf16")),
        ("compile=default,dynamic", ("compile=default,dynamic",)),
        ("compile=default,dynamic,amp=bf16", ("amp=bf16", "compile=default,dynamic")),
        ("compile=reduce-overhead,amp=bf16", ("amp=bf16", "compile=reduce-overhead")),
        (" amp=bf16 , pin ", ("pin", "amp=bf16")),
        ("workers=4,prefetch", ("workers=4", "prefetch")),
    ],
)
def test_a_variant_is_split_at_the_commas_between_fixes(text, fixes):
    assert split_fixes(text) == fixes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("amp=bf17", "amp=bf17"),
        ("ampp=bf16", "did you mean amp"),
        ("amp=bf16,dynamic", "dynamic"),
        ("amp=bf16,,pin", "empty"),
        ("", "empty"),
        ("none,pin", "none cannot be combined"),
        ("pin,none", "none cannot be combined"),
        ("pin,pin", "twice"),
        ("compile,cuda_graph", "cannot be combined"),
    ],
)
def test_what_is_no_variant_is_refused_in_one_line(text, says):
    with pytest.raises(UsageError) as caught:
        split_fixes(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variants_stand_once_each_in_the_order_asked_for():
    found = fix_variants(["tf32=off", "none", "amp=bf16,tf32", "tf32,amp=bf16"])
    assert [variant.label for variant in found] == ["tf32=off", "none", "tf32,amp=bf16"]
    assert found[2].fixes == ("tf32", "amp=bf16")


def test_without_fixes_there_is_one_variant():
    assert fix_variants([]) == (Variant("none"),)


def test_an_ablation_has_each_alone_adding_up_and_left_out():
    found = {
        variant.fixes: variant.roles for variant in ablation_variants("channels_last,amp=bf16,tf32")
    }
    assert found == {
        (): ("none",),
        ("channels_last",): ("alone", "cumulative"),
        ("amp=bf16",): ("alone",),
        ("tf32",): ("alone",),
        ("amp=bf16", "channels_last"): ("cumulative", "left out"),
        ("tf32", "amp=bf16", "channels_last"): ("cumulative",),
        ("tf32", "amp=bf16"): ("left out",),
        ("tf32", "channels_last"): ("left out",),
    }


def test_an_ablation_of_two_measures_nothing_twice():
    found = ablation_variants("compile=default,dynamic,amp=bf16")
    assert len({variant.fixes for variant in found}) == len(found) == 4
    assert found[0].fixes == ()


def test_an_ablation_needs_two_fixes():
    with pytest.raises(UsageError, match="two fixes"):
        ablation_variants("tf32")


def test_a_grid_is_every_combination_once():
    request = BenchRequest(
        models=("mlp", "lstm"),
        modes=("train", "infer"),
        devices=("cpu",),
        batches=(4, 8),
        variants=fix_variants(["none", "amp=bf16"]),
        settings={"test_samples": 9},
    )
    found = grid_points(request)
    assert len({point.key() for point in found}) == len(found) == 16
    assert {dict(p.settings).get("test_samples") for p in found if p.mode == "infer"} == {None}
    assert [point.fixes for point in found[:2]] == [(), ("amp=bf16",)]


def test_without_a_batch_each_model_has_its_own():
    from stepscope.workloads.catalogue import find_workload

    found = grid_points(BenchRequest(models=("mlp", "unet"), modes=("infer",), devices=("cpu",)))
    assert [point.batch for point in found] == [
        find_workload("mlp").batch,
        find_workload("unet").batch,
    ]
