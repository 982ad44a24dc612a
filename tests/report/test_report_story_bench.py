"""The stories of benchmarks: grids, ablations, studies, loaders, kernels."""

import pytest
from bench_documents import (
    CPU_GPU,
    MEMORY,
    document,
    failed,
    kernels_document,
    loader_document,
    point,
)
from story_reading import blocks, chart, table, whole, words
from subjects import subject

from stepscope.report.story.bench.story import story_of_bench
from stepscope.report.story.blocks import Chart, Code, Missing


def story(whole):
    return story_of_bench(subject("bench", whole))


def sweep():
    return story(
        document(
            *(point(batch=batch, mean_ms=10 + batch / 8) for batch in (8, 32, 128)),
            failed("out_of_memory", "asked for much", batch=256),
        )
    )


@pytest.mark.parametrize(
    "made",
    [
        document(),
        document(failed("failed", "boom")),
        document(point(), point(device="cpu"), point(model="vgg")),
        document(point(), point(fixes=["a"], ratio=1.5), request={"ablate": ["a"]}),
        document(study=CPU_GPU),
        document(study=MEMORY),
        {**document(), **kernels_document()},
        {**document(), **loader_document()},
    ],
    ids=["empty", "failed", "grid", "ablation", "cpu-gpu", "memory", "kernels", "loader"],
)
def test_every_benchmark_gives_a_story_that_all_renderers_take(made):
    assert whole(story(made))


def test_throughput_and_time_are_drawn_against_batch():
    rates = chart(sweep(), "points-1-throughput")
    assert list(rates.series[0].x) == [8, 32, 128]
    assert rates.x.log
    assert list(chart(sweep(), "points-1-latency").series[0].y) == [11.0, 14.0, 26.0]


def test_a_point_that_failed_keeps_its_row_with_the_reason():
    found = table(sweep(), "points-1-speed")
    assert found.columns[-1].name == "outcome"
    assert found.rows[-1][-1] == "out of memory: asked for much"


def test_columns_without_any_value_are_left_out():
    names = [column.name for column in table(sweep(), "points-1").columns]
    assert "samples/s" in names
    assert "energy" not in names


def test_an_ablation_has_each_fix_alone_added_and_left_out():
    told = story(
        document(
            point(),
            point(fixes=["a"], ratio=1.5),
            point(fixes=["b"], ratio=1.2),
            point(fixes=["a", "b"], ratio=1.9),
            request={"ablate": ["a", "b"]},
        )
    )
    rows = table(told, "points-1-32-ablation").rows
    assert rows[1] == ("b", "1.20×", "1.90×", "1.50×")
    assert told.verdict.startswith("1.90× (1.86–1.94) faster than none with a,b")


def test_models_and_devices_are_compared_where_there_are_several():
    told = story(
        document(
            point(model="resnet18"), point(model="vgg", mean_ms=40.0),
            point(model="vgg", mean_ms=400.0, device="cpu"),
        )
    )  # fmt: skip
    assert [one.name for one in chart(told, "models-train").series] == ["cuda", "cpu"]
    assert list(chart(told, "devices").series[0].y) == [pytest.approx(10.0)]


def test_the_study_of_both_devices_tells_speed_losses_and_operators():
    told = story(document(study=CPU_GPU))
    assert told.verdict == "The GPU is 20.0× as fast as the CPU (19.50–20.50)."
    assert table(told, "devices").rows[1][2] == 2000.0
    assert len(chart(told, "losses").series) == 2
    assert list(chart(told, "operator-speedup").series[0].x) == ["convolution"]


def test_the_memory_study_tells_what_each_technique_makes_room_for():
    told = story(document(study=MEMORY))
    assert "240" in told.verdict
    assert table(told, "techniques").rows[3][-1] == "not applicable: no attention was found"


def test_a_loader_grid_gives_the_line_to_write():
    told = story({**document(), **loader_document()})
    assert told.verdict.startswith("Use batch")
    assert any("num_workers=16" in one.text for one in blocks(told, Code))
    assert len(chart(told, "loader").series) == 3


def test_kernels_are_told_against_their_ceilings():
    told = story({**document(), **kernels_document()})
    assert "26% of the compute ceiling" in told.verdict
    assert table(told, "operators").rows[0][6] == pytest.approx(1030.0)


def test_what_is_unstable_is_said():
    told = story(document(point(unstable=True, unstable_why="it drifts"), noise_floor=0.03))
    assert "is unstable: it drifts" in words(told)
    assert "oise floor 3.0%" in words(told)


def test_nothing_measured_gives_a_whole_story():
    told = story(document())
    assert blocks(told, Missing)
    assert not blocks(told, Chart)
    told = story(document(failed("failed", "boom")))
    assert told.verdict == "Nothing could be measured."
