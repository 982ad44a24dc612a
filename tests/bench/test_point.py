"""Points: what is measured, its name and its command line."""

from pathlib import Path

import pytest
from msgspec.json import decode, encode

from stepscope.bench.grid import MODES, SETTINGS, Point
from stepscope.workloads import arguments


def test_a_point_comes_back_from_json_as_it_was():
    point = Point.of("gpt:tiny", "generate", 2, "cuda", ("amp=bf16",), prompt=8, seconds=0.5)
    again = decode(encode(point), type=Point)
    assert again == point
    assert again.key() == point.key()


def test_the_key_tells_every_difference_apart():
    points = [
        Point.of("mlp", "train", 4, "cpu"),
        Point.of("lstm", "train", 4, "cpu"),
        Point.of("mlp", "infer", 4, "cpu"),
        Point.of("mlp", "train", 8, "cpu"),
        Point.of("mlp", "train", 4, "cuda"),
        Point.of("mlp", "train", 4, "cpu", ("tf32",)),
        Point.of("mlp", "train", 4, "cpu", ("tf32", "pin")),
        Point.of("mlp", "train", 4, "cpu", seed=1),
        Point.of("mlp", "train", 4, "cpu", seed=2),
    ]
    assert len({point.key() for point in points}) == len(points)
    assert all("\n" not in point.key() for point in points)


def test_settings_in_any_order_are_the_same_point():
    one = Point.of("mlp", "train", 4, "cpu", size=32, seed=1)
    other = Point.of("mlp", "train", 4, "cpu", seed=1, size=32)
    assert one.key() == other.key()


def test_a_point_keeps_only_what_its_mode_knows_and_what_was_given():
    settings = {"prompt": 8, "test_samples": 9, "seed": 1, "size": None}
    assert dict(Point.of("gpt", "train", 1, "cpu", **settings).settings) == {
        "seed": 1,
        "test_samples": 9,
    }
    assert dict(Point.of("gpt", "infer", 1, "cpu", **settings).settings) == {"seed": 1}
    assert dict(Point.of("gpt", "generate", 1, "cpu", **settings).settings) == {
        "prompt": 8,
        "seed": 1,
    }


def test_the_command_names_program_and_options():
    point = Point.of("mlp", "train", 4, "cpu", ("amp=bf16",), test_samples=9, seconds=0.5)
    assert point.command(Path("m.json")) == [
        *("stepscope.workloads.train", "--model", "mlp", "--batch", "4", "--device", "cpu"),
        *("--seconds", "0.5", "--test-samples", "9", "--measure", "m.json"),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_the_programs_know_every_setting(mode):
    values = dict.fromkeys(SETTINGS[mode], 1) | {"data": "synthetic"}
    point = Point.of("gpt:tiny", mode, 4, "cpu", **{n: values[n] for n in SETTINGS[mode]})
    asked = arguments.parse_arguments(mode, "", point.command(Path("m.json"))[1:])
    for name, value in point.settings.items():
        assert getattr(asked, name) == value, name
