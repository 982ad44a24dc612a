"""The probe's options travel to the child as text."""

import dataclasses
import json

import pytest

from stepscope.record.probe_options import ProbeOptions


def test_options_survive_the_way_to_the_child():
    options = ProbeOptions(
        folder="/tmp/a b/жаба", launched_ns=123456789012345678, steps=5, warmup=0, window=0,
        window_at=2, stacks=0, memory="cuda", nvtx=True, python=True,
    )  # fmt: skip
    assert ProbeOptions.from_json(options.to_json()) == options


def test_defaults_survive_too():
    options = ProbeOptions(folder="x", launched_ns=1)
    assert ProbeOptions.from_json(options.to_json()) == options


def test_the_text_fits_an_environment_variable():
    text = ProbeOptions(folder="a\nb\x01", launched_ns=1).to_json()
    assert "\n" not in text
    assert "\x00" not in text
    assert json.loads(text)["folder"] == "a\nb\x01"


def test_what_was_not_asked_for_is_left_to_the_probe():
    options = ProbeOptions(folder="x", launched_ns=1)
    assert (options.steps, options.warmup, options.window_at) == (None, None, None)
    assert options.window == 6
    assert [options.memory, options.nvtx, options.python] == [None, False, False]


def test_options_do_not_change_on_the_way():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ProbeOptions(folder="x", launched_ns=1).steps = 3
