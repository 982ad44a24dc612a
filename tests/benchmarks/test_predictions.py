"""What benchmarks/predictions.py makes of predicted and measured speedups."""

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEAD = {
    "device": "cpu",
    "date": "2026-01-01",
    "command": "python benchmarks/predictions.py",
    "machine": {"cpu": {"model": "Some CPU"}, "gpus": []},
    "versions": {"python": "3.11", "torch": "2.13", "stepscope": "0.1", "commit": None},
}


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Any]]:
    """Imports the benchmark's modules by name; they are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if name.startswith(("_predictions_", "predictions", "_about")):
            del sys.modules[name]


def promise(speedup: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {
        "speedup": speedup, "low": low or speedup / 1.1, "high": high or speedup * 1.1,
        "step_ms": 10 / speedup, "base_ms": 10.0, "by": "replay",
    }  # fmt: skip


def pair(fixed_ms: float, promised: float | None, **more: Any) -> dict[str, Any]:
    """Three processes on each side, of 10 ms and of `fixed_ms`; they differ by a percent."""
    sides = [[[ms * (1 + 0.01 * n)] * 40 for n in range(3)] for ms in (10.0, fixed_ms)]
    return {
        "program": "mlp", "fix": "workers=2", "half": "fitting", "others": 0.25, "unfit": [],
        "base": sides[0], "fixed": sides[1],
        "promise": None if promised is None else promise(promised),
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def pairs(load):
    return load("_predictions_pairs")


def test_the_error_is_predicted_over_measured_speedup(pairs):
    found = pairs.judged(pair(5.0, 2.1))
    assert found["status"] == "measured"
    assert found["measured"]["speedup"] == pytest.approx(2.0)
    assert found["measured"]["verdict"] == "faster"
    assert found["error"] == pytest.approx(0.05)
    assert found["within"]
    assert not found["broken"]
    assert len(found["base_ms"]) == len(found["fixed_ms"]) == 3
    assert "base" not in found, "single steps are not kept"


def test_a_range_that_the_measurement_leaves_did_not_hold(pairs):
    found = pairs.judged(pair(5.0, 3.0))
    assert (found["within"], found["meets"]) == (False, False)


def test_a_noisy_measurement_beside_the_range_is_neither(pairs):
    noisy = [[ms] * 40 for ms in (3.5, 5.0, 7.0)]
    found = pairs.judged(pair(5.0, 2.5, fixed=noisy))
    assert (found["within"], found["meets"]) == (False, True)
    assert pairs.summary([found])["meets"] == 1


def test_the_summary_tells_what_promising_nothing_would_have_erred_by(pairs):
    assert pairs.summary([pairs.judged(pair(5.0, 2.0))])["unmoved"] == pytest.approx(0.5)


@pytest.mark.parametrize(("promised", "broken"), [(1.2, True), (1.05, False), (0.8, False)])
def test_only_a_notable_gain_that_turns_out_a_loss_is_a_broken_promise(pairs, promised, broken):
    assert pairs.judged(pair(11.0, promised))["broken"] is broken


def test_a_fix_that_does_not_apply_says_why(pairs):
    found = pairs.judged(pair(5.0, 2.0, unfit=["no CUDA device"], fixed=[]))
    assert (found["status"], found["reasons"]) == (
        "not applicable", ["no CUDA device"]
    )  # fmt: skip
    assert "measured" not in found


def test_without_any_run_that_ended_well_nothing_is_measured(pairs):
    assert pairs.judged(pair(5.0, 2.0, base=[]))["reasons"] == ["no run ended well"]


def test_a_measured_pair_without_a_prediction_has_no_error(pairs):
    found = pairs.judged(pair(5.0, None))
    assert found["status"] == "not predicted"
    assert "error" not in found
    assert pairs.summary([found]) == {"pairs": 0}


def test_predictions_can_be_made_anew_for_what_was_measured(pairs):
    found = pairs.judged(pair(5.0, 3.0))
    better = pairs.with_promise(found, promise(2.0))
    assert better["error"] == pytest.approx(0.0)
    assert better["measured"] == found["measured"]
    gone = pairs.with_promise(better, None)
    assert "error" not in gone
    unfit = pairs.judged(pair(5.0, 2.0, unfit=["no"], fixed=[]))
    assert pairs.with_promise(unfit, promise(9.0))["status"] == "not applicable"


def test_the_summary_counts_both_directions_alike(pairs):
    promised = (2.2, 1.8, 2.0, 2.6)
    found = pairs.summary([pairs.judged(pair(5.0, one)) for one in promised])
    assert found["pairs"] == 4
    assert found["median"] == pytest.approx(0.1)
    assert found["p90"] == found["worst"] == pytest.approx(0.3)
    assert found["broken"] == []


@pytest.mark.parametrize(("share", "value"), [(0.9, 9.0), (0.91, 10.0), (0.5, 5.0), (0.0, 1.0)])
def test_percentiles_are_values_that_occurred(pairs, share, value):
    assert pairs.percentile([float(n) for n in range(10, 0, -1)], share) == value


def test_only_missing_pairs_are_run(pairs):
    wanted = [("mlp", "cache"), ("mlp", "workers=2"), ("cnn", "workers=2")]
    assert pairs.lacking([pair(5.0, 2.0)], wanted) == [wanted[0], wanted[2]]


def test_halves_follow_from_names_alone_and_are_about_equal(load):
    programs = load("_predictions_programs")
    for device in ("cpu", "cuda"):
        every = [(n, f) for n, one in programs.PROGRAMS[device].items() for f in one.fixes]
        assert len(every) >= 20
        split = [programs.half(device, *one) for one in every]
        assert 0.3 <= split.count("reporting") / len(split) <= 0.7
        assert split == [programs.half(device, *one) for one in every]


def test_fixes_and_workloads_are_ones_there_are(load):
    from stepscope.fixes.registry import parse_fixes

    programs = load("_predictions_programs")
    for device, known in programs.PROGRAMS.items():
        for name, program in known.items():
            assert all(parse_fixes([fix]) for fix in program.fixes)
            words = programs.arguments(name, device)
            if words[0] == "-m":
                assert words[1].startswith("stepscope.workloads.")
            else:
                assert Path(words[0]).is_file()


def test_the_table_tells_halves_broken_promises_and_what_did_not_apply(load, pairs):
    table = load("_predictions_table").table
    found = [
        pairs.judged(pair(5.0, 2.1)),
        pairs.judged(pair(11.0, 1.5, fix="cache", half="reporting")),
        pairs.judged(pair(5.0, None, fix="batch=2")),
        pairs.judged(pair(5.0, 2.0, fix="sdpa", unfit=["no attention"], fixed=[])),
    ]
    text = table(HEAD | {"pairs": found})
    assert "| mlp | `workers=2` | fitting | 2.10× | 1.91–2.31 | 2.00× |" in text
    assert "| not known | – |" in text
    assert "mlp × `sdpa`: not applicable: no attention" in text
    assert "- all: 2 pairs" in text
    assert "- reporting half: 1 pairs, median |error| 65.0% (goal ≤ 10%: missed)" in text
    assert "broken promises: mlp × cache." in text
    assert "others kept up to 0.2 cores busy" in text


def test_a_table_of_nothing_says_so(load):
    assert "no pair was measured" in load("_predictions_table").table(HEAD | {"pairs": []})


@pytest.fixture
def driver(load, monkeypatch):
    """The driver with runs that take no time: a fix halves the step, `sdpa` does not apply."""
    driver = load("predictions")
    runs: list[str] = []

    def observed(folder, words, device, fix="", window=False):
        runs.append("window" if window else fix)
        folder.mkdir(exist_ok=True)
        (folder / "rows.npy").touch()
        return "exit code 1: no memory" if fix == "checkpointing" else ""

    monkeypatch.setattr(driver, "observed", observed)
    monkeypatch.setattr(driver, "calm", lambda cores, longest_s: None)
    monkeypatch.setattr(driver, "Others", lambda: argparse.Namespace(cores=lambda: 0.0))
    monkeypatch.setattr(driver, "unfit", lambda run: ["no attention"] * (runs[-1] == "sdpa"))
    monkeypatch.setattr(driver, "step_times", lambda run: ([5.0 if runs[-1] else 10.0] * 40, 8))
    monkeypatch.setattr(driver, "promises", lambda folder, fixes: {f: promise(2.0) for f in fixes})
    return driver, runs


def options(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **({"device": "cpu", "rounds": 2, "others": 0.3, "made": None} | more)
    )


def test_a_run_that_others_disturbed_is_repeated_but_not_for_ever(driver, tmp_path, monkeypatch):
    program, runs = driver
    busy = iter([1.0, 0.1, *[1.0] * 9])
    monkeypatch.setattr(program, "Others", lambda: argparse.Namespace(cores=lambda: next(busy)))
    assert program.undisturbed(tmp_path, [], options()) == ("", 0.1)
    assert len(runs) == 2
    assert program.undisturbed(tmp_path, [], options()) == ("", 1.0)
    assert len(runs) == 5


def test_a_run_waits_for_others_but_not_for_ever(load, monkeypatch):
    measure = load("_predictions_measure")
    busy = iter([1.5, 1.2, 0.1, *[1.0] * 99])
    seen = []
    others = argparse.Namespace(cores=lambda: seen.append(next(busy)) or seen[-1])
    monkeypatch.setattr(measure, "Others", lambda: others)
    measure.calm(0.3, 0.01)
    assert seen[0] == 1.5
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    measure.calm(0.3, 60.0)
    assert seen[-1] == 0.1


def test_steps_of_more_samples_are_compared_sample_by_sample(load):
    alike = load("_predictions_measure").alike
    assert alike([20.0, 22.0], 16, 8) == [10.0, 11.0]
    assert alike([20.0], None, 8) == alike([20.0], 8, None) == [20.0]


def test_what_our_own_children_do_is_not_others(load, monkeypatch):
    measure = load("_predictions_measure")
    clocks = iter([(10.0, 100.0, 5.0), (20.0, 118.0, 15.0)])
    monkeypatch.setattr(measure, "_clocks", lambda: next(clocks))
    assert measure.Others().cores() == pytest.approx(0.8)


def test_rounds_go_through_all_fixes_in_turn_and_leave_out_what_does_not_apply(driver, tmp_path):
    program, runs = driver
    fixes = ["foreach", "sdpa", "checkpointing"]
    found = program.measured("lstm", fixes, options(), tmp_path, float("inf"))
    first = ["window", "", "foreach", "sdpa", "checkpointing"]
    assert runs == [*first, "", "foreach"]
    assert [one["status"] for one in found] == ["measured", *["not applicable"] * 2]
    assert found[0]["error"] == pytest.approx(0.0)
    assert found[1]["reasons"] == ["no attention"]
    assert found[2]["reasons"] == ["exit code 1: no memory"]


def test_when_time_is_over_what_was_run_counts_and_the_rest_is_left_out(
    driver, tmp_path, monkeypatch
):
    program, runs = driver
    clock = iter(range(9))
    monkeypatch.setattr(program, "time", argparse.Namespace(monotonic=lambda: next(clock)))
    found = program.measured("lstm", ["foreach", "cache"], options(), tmp_path, 2)
    assert runs == ["window", "", "foreach"]
    assert [(one["fix"], one["status"]) for one in found] == [("foreach", "measured")]
    assert len(found[0]["fixed_ms"]) == 1


def test_results_are_merged_and_windows_serve_again(driver, tmp_path, monkeypatch, capsys):
    program, runs = driver
    out = tmp_path / "found.json"

    def call(*words: str) -> list[dict[str, Any]]:
        base = ["predictions.py", "--out", str(out), "--windows", str(tmp_path), "--rounds", "1"]
        monkeypatch.setattr(sys, "argv", [*base, "--programs", "lstm", *words])
        runs.clear()
        program.main()
        return json.loads(out.read_text())["pairs"]

    monkeypatch.setattr(program, "about", lambda *rest: dict(HEAD))
    assert len(call("--fixes", "foreach")) == 1
    assert [one["fix"] for one in call("--fixes", "foreach+cache")] == ["foreach", "cache"]
    assert runs == ["", "cache"]
    assert call("--fixes", "amp=bf16", "--seconds", "0") == json.loads(out.read_text())["pairs"]
    assert runs == [], "no time, nothing run, all kept"
    assert "out of time" in capsys.readouterr().err
    assert [one["fix"] for one in call("--fixes", "foreach", "--again")] == ["foreach"]


def test_runs_made_earlier_are_read_and_none_is_made(driver, tmp_path, monkeypatch, capsys):
    program, runs = driver
    out, made = tmp_path / "found.json", tmp_path / "made"
    out.write_text(json.dumps({**HEAD, "command": "there", "pairs": []}))
    for folder, code in (("unchanged", 0), ("foreach", 0), ("fused_optimizer", 1)):
        (made / f"cpu-lstm--{folder}--0").mkdir(parents=True)
        run = {"schema": "stepscope.run/1", "run": {"exit_code": code}}
        (made / f"cpu-lstm--{folder}--0" / "run.json").write_text(json.dumps(run))
    (tmp_path / "cpu-lstm").mkdir()
    (tmp_path / "cpu-lstm" / "rows.npy").touch()
    times = {"unchanged": 10.0, "foreach": 5.0}
    monkeypatch.setattr(program, "unfit", lambda run: [])
    monkeypatch.setattr(
        program, "step_times", lambda run: ([times[run.name.split("--")[1]]] * 40, 8)
    )
    monkeypatch.setattr(program, "about", lambda *rest: {**HEAD, "command": "here", "device": "?"})
    words = ["--out", str(out), "--windows", str(tmp_path), "--made", str(made), "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["predictions.py", *words, "--programs", "lstm+gpt"])
    program.main()
    found = json.loads(out.read_text())
    assert runs == []
    assert (found["command"], found["device"]) == ("there; here", HEAD["device"])
    assert {one["fix"]: one["status"] for one in found["pairs"]} == {
        "foreach": "measured", "fused_optimizer": "not applicable",
    }  # fmt: skip
    by_fix = {one["fix"]: one for one in found["pairs"]}
    assert by_fix["fused_optimizer"]["reasons"] == ["exit code 1"]
    assert by_fix["foreach"]["others"] is None
    assert "is not known" in capsys.readouterr().out


def test_an_unknown_program_is_told_of(driver, monkeypatch, capsys):
    program, _ = driver
    monkeypatch.setattr(sys, "argv", ["predictions.py", "--programs", "none"])
    with pytest.raises(SystemExit):
        program.main()
    assert "none is none of" in capsys.readouterr().err
