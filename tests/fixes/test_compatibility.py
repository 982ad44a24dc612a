"""Every fix alone, every two and as many as go together, over programs of many shapes."""

import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cell_judge import Cell, Table
from cell_server import NO_DEVICE, exact_alone, idle_alone
from compatibility import (
    How,
    asked,
    declared_bad,
    judged_by,
    on_a_gpu,
    pairs,
    run_cells,
    shapes,
    singles,
    together,
    variants,
)

from stepscope.fixes.registry import FIX_NAMES

ROOT = Path(__file__).resolve().parents[2]
JOBS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
NEEDS = {"lightning_fit": ("lightning",), "hf_trainer": ("transformers", "accelerate")}
LIKELY = [
    ("workers", "persistent"),
    ("workers", "checkpointing"),
    ("cache", "batch"),
    ("amp", "accumulate"),
    ("amp", "channels_last"),
    ("amp", "checkpointing"),
    ("accumulate", "fused_optimizer"),
]
"""Pairs that people will ask for, or whose parts meet in the same place."""


def faults(cells: Iterable[Cell]) -> str:
    """The cells that do not do what their fixes say, a line each."""
    bad = [cell for cell in cells if cell.state in ("broken", "stops")]
    return "\n".join(f"{c.program} with {' + '.join(c.fixes)} {c.state}: {c.why}" for c in bad)


def ready(program: str) -> str:
    for package in NEEDS.get(program, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return program


@pytest.mark.slow
@pytest.mark.parametrize("program", shapes())
def test_fixes_alone_and_in_sets_do_what_they_say(program: str) -> None:
    likely = [tuple(map(asked, names)) for names in LIKELY]
    sets = [*singles(), *variants("cpu"), *likely, *together()]
    cells = run_cells(ready(program), sets, How(jobs=JOBS))
    assert faults(cells) == ""
    assert [cell.fixes for cell in cells] == sets


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", shapes())
def test_every_two_fixes_do_what_they_say(program: str) -> None:
    sets = [*singles(), *pairs("cpu")]
    cells = run_cells(ready(program), sets, How(jobs=JOBS))
    assert faults(cells) == ""
    assert [cell.fixes for cell in cells] == sets


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", shapes())
def test_fixes_alone_and_in_sets_do_what_they_say_on_a_gpu(program: str) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    sets = [*singles(), *variants("cuda"), *together()]
    how = How("cuda", jobs=max(2, len(os.sched_getaffinity(0)) // 2), timeout_s=180)
    assert faults(run_cells(ready(program), sets, how)) == ""


@pytest.mark.slow
def test_cells_that_time_ran_out_for_are_not_run() -> None:
    (cell,) = run_cells("decoder", [("tf32=on", "pin")], How(seconds=-1.0, one_stage=True))
    assert cell == Cell("decoder", ("tf32=on", "pin"), "not run", "there was no time left for it")


def test_there_are_all_the_shapes_of_programs() -> None:
    wanted = {"cnn", "decoder", "rnn", "gan", "accumulation", "resumed", "lightning_fit"}
    assert wanted | {"cnn_view", "own_precision", "hf_trainer"} == set(shapes())


def test_the_largest_sets_hold_all_but_what_is_declared_bad() -> None:
    sets = together()
    assert {fix for fixes in sets for fix in fixes} == set(map(asked, FIX_NAMES))
    for fixes in sets:
        assert declared_bad(fixes) is None
    for left_out in set(map(asked, FIX_NAMES)) - set(sets[-1]):
        assert declared_bad([*sets[-1], left_out]) is not None


# How cells are judged


def ended(*fixes: str, **what: Any) -> dict[str, Any]:
    """What comes of a program with these fixes, all of them applied and exact unless told."""
    became = [
        {"name": name, "state": "applied", "kind": "exact", "reasons": []}
        for name in (text.split("=")[0] for text in fixes)
    ]
    usual = {"exit_code": 0, "losses": [2.0, 1.5], "said": ["abc"], "became": became}
    usual |= {"problems": [], "stderr": "", "seconds": 1.0, "fixes": list(fixes)}
    return usual | what


def judged(one: dict[str, Any], *others: dict[str, Any]) -> Cell:
    table = Table("cnn", [ended(), ended()])
    for other in (*others, one):
        table.remember(other)
    return table.judge(one)


def changed(one: dict[str, Any], name: str, **how: Any) -> dict[str, Any]:
    """The same with another word on one of its fixes."""
    became = [fix | how if fix["name"] == name else fix for fix in one["became"]]
    return one | {"became": became}


def test_an_exact_fix_runs_if_all_stayed_as_it_was() -> None:
    assert judged(ended("pin")) == Cell("cnn", ("pin",), "runs", "", 1, 1.0)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"losses": [2.0, 1.5000001]}, "exact, but not as without fixes: loss 1: 1.5, then 1.5"),
        ({"losses": [2.0]}, "2 losses, then 1"),
        ({"said": ["xyz"]}, "['abc'], then ['xyz']"),
        ({"losses": [2.0, math.nan]}, "not finite"),
        ({"losses": []}, "not finite"),
        ({"exit_code": 1, "stderr": "Traceback\nValueError: no\n"}, "exit code 1: ValueError: no"),
        ({"exit_code": -11}, "exit code -11"),
        ({"exit_code": None}, "still running"),
        ({"problems": ["KeyError"]}, "the observer gave up: KeyError"),
        ({"became": []}, "not put in place"),
    ],
)
def test_a_cell_is_broken_that(what: dict[str, Any], says: str) -> None:
    cell = judged(ended("pin", **what))
    assert cell.state == "broken"
    assert says in cell.why


def test_a_fix_that_failed_to_install_breaks_its_cell() -> None:
    reasons = ["could not be installed: KeyError('x')"]
    one = changed(ended("pin"), "pin", state="not applicable", kind=None, reasons=reasons)
    assert judged(one).state == "broken"


def test_a_fix_with_nothing_to_take_hold_of_is_not_applicable_if_nothing_else_changed() -> None:
    one = changed(ended("pin"), "pin", state="not applicable", kind=None, reasons=["no loader"])
    assert (judged(one).state, judged(one).why) == ("not applicable", "pin: no loader")
    assert judged(one | {"losses": [2.0, 1.4]}).state == "broken"


def test_a_program_that_ended_for_a_fixs_reason_stops() -> None:
    one = changed(ended("pin", exit_code=1), "pin", state="broke", reasons=["`view` at a.py:3"])
    assert (judged(one).state, judged(one).why) == ("stops", "pin: `view` at a.py:3")


def test_numeric_fixes_may_round_but_not_more() -> None:
    near = changed(ended("amp", losses=[2.01, 1.52]), "amp", kind="numeric")
    far = changed(ended("amp", losses=[2.01, 9.0]), "amp", kind="numeric")
    assert judged(near).state == "runs"
    assert "far from the bare program: loss 1: 1.5, then 9.0" in judged(far).why


def test_semantic_fixes_may_change_what_is_finite() -> None:
    assert judged(changed(ended("batch", losses=[7.0]), "batch", kind="semantic")).state == "runs"


def test_an_exact_fix_must_change_nothing_of_what_a_numeric_one_gives() -> None:
    alone = changed(ended("amp", losses=[2.01, 1.52]), "amp", kind="numeric")
    both = changed(ended("amp", "pin", losses=[2.01, 1.52]), "amp", kind="numeric")
    assert judged(both, alone).state == "runs"
    cell = judged(both | {"losses": [2.01, 1.53]}, alone)
    assert "not as with amp alone: loss 1: 1.52, then 1.53" in cell.why


def test_where_runs_do_not_repeat_exact_means_near() -> None:
    table = Table("cnn", [ended(), ended(losses=[2.0, 1.50000001])])
    assert not table.repeatable
    assert table.judge(ended("pin", losses=[2.0, 1.5001])).state == "runs"
    assert table.judge(ended("pin", losses=[2.0, 1.6])).state == "broken"


def test_where_the_bare_program_does_not_repeat_nothing_need_to_the_bit() -> None:
    table = Table("cnn", [ended(), ended(losses=[2.0, 1.50000001])])
    table.remember(changed(ended("amp"), "amp", kind="numeric"))
    table.remember(changed(ended("amp"), "amp", kind="numeric"))
    both = changed(ended("amp", "pin", losses=[2.0, 1.5001]), "amp", kind="numeric")
    assert table.judge(both).state == "runs"
    assert table.judge(both | {"losses": [2.0, 1.6]}).state == "broken"


def test_a_fix_that_chooses_by_the_clock_is_not_asked_for_the_same_bits() -> None:
    alone = changed(ended("cudnn_benchmark"), "cudnn_benchmark", kind="numeric")
    both = changed(ended("cudnn_benchmark", "pin"), "cudnn_benchmark", kind="numeric")
    assert judged(both | {"losses": [2.0, 1.51]}, alone).state == "runs"
    assert judged(both | {"losses": [2.0, 9.0]}, alone).state == "broken"


def test_only_fixes_alone_that_others_are_compared_with_run_again() -> None:
    numeric = changed(ended("amp"), "amp", kind="numeric")
    idle = changed(ended("amp"), "amp", state="not applicable", kind=None)
    assert exact_alone(ended("pin"))
    assert exact_alone(idle)
    assert not exact_alone(numeric)
    assert not exact_alone(ended("pin", exit_code=1))
    assert not exact_alone(ended("pin", "nosync"))


def test_a_fix_that_did_nothing_alone_is_idle_unless_another_may_help_it() -> None:
    def idle(name: str, reason: str) -> dict[str, Any]:
        return changed(ended(name), name, state="not applicable", kind=None, reasons=[reason])

    assert idle_alone(idle("pin", "no loader"), True) == "pin: no loader"
    assert idle_alone(idle("pin", "no loader"), False) is None
    assert idle_alone(idle("cuda_graph", NO_DEVICE), False) == f"cuda_graph: {NO_DEVICE}"
    assert idle_alone(idle("cuda_graph", "add fused_optimizer"), True) is None
    assert idle_alone(ended("pin"), True) is None


# The docs


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    """The benchmark that makes the table, loaded by path and forgotten again."""
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("compat", f"{folder}/fix_compatibility.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(folder)
    del sys.modules["_fix_table"], sys.modules["_fix_cells"]


def test_the_docs_table_is_that_of_the_results(tables: Any) -> None:
    text = (ROOT / "docs" / "fixes.md").read_text()
    assert tables.placed(text, tables.results()) == text, "benchmarks/fix_compatibility.py --docs"


def test_the_tables_show_every_state(tables: Any) -> None:
    whys = ["", "pin: no loader", "amp: at a.py:3 no", "--fix a and --fix b do not go together"]
    cells = {"pin": ["runs", 1, 0], "amp": ["broken", 0, 2], "tf32": ["not applicable", 0, 1]}
    cells |= {"pin+amp": ["runs", 2, 0], "pin+tf32": ["declared bad", 0, 3]}
    cells |= {"amp+tf32": ["stops", 1, 2], "pin+amp+tf32": ["not applicable", 2, 1]}
    machine = {"cpu": {"model": "A CPU"}, "gpus": []}
    versions = {"python": "3", "torch": "2", "stepscope": "0", "commit": "c"}
    document = {"machine": machine, "versions": versions, "device": "cpu", "date": "d"}
    document |= {"command": "python x", "fixes": ["pin", "amp", "tf32"]}
    text = tables.table(
        document | {"programs": {"my_cnn": {"run": 6, "whys": whys, "cells": cells}}}
    )
    for line in (
        "7 cells, 6 of them run: 2 runs, 2 not applicable, 1 stops, 1 declared bad, 1 broken.",
        "| alone | my cnn |",
        "| `pin` | ✓ |",
        "| `amp` | ✗ |",
        "| `tf32` | – |",
        "- `tf32`: no loader (all)",
        "| set 1: 3 fixes | 2 applied |",
        "| 2 `amp` | 1 |  |",
        "| 3 `tf32` | bad | ✗ |",
    ):
        assert f"\n{line}" in text, line


def test_only_what_is_lacking_or_faulty_is_run_again(tables: Any) -> None:
    def cell(*fixes: str, state: str = "runs", why: str = "") -> Cell:
        return Cell("cnn", fixes, state, why, len(fixes), 1.0)

    sets = [("pin",), ("amp",), ("tf32",), ("pin", "amp"), ("pin", "tf32"), ("amp", "tf32")]
    good = (cell(*fixes) for fixes in (*sets[:3], ("pin", "tf32")))
    earlier = tables.kept([*good, cell("pin", "amp", state="broken", why="far")])
    assert tables.lacking({}, sets, judged_by) == sets
    wanted = [("pin", "amp"), ("amp", "tf32")]
    assert tables.lacking(earlier, sets, judged_by) == [("amp",), *wanted]
    after = tables.merged(earlier, [cell("pin", "amp"), cell("amp", "tf32", why="x")])
    assert after["run"] == 6
    late = tables.merged(after, [cell("tf32", state="not run")])
    assert tables.lacking(late, sets, judged_by) == [("tf32",)]
    assert after["cells"]["pin+amp"] == ["runs", 2, 0]
    assert after["whys"] == ["", "x"]
    assert tables.lacking(after, sets, judged_by) == []


def test_a_page_without_markers_is_refused(tables: Any) -> None:
    with pytest.raises(RuntimeError, match="compatibility: begin"):
        tables.placed("# Fixes\n", [])


NOT_ON_A_GPU_YET = {"recycle"}


def test_the_results_cover_every_fix_program_and_pair(tables: Any) -> None:
    for document in tables.results():
        device = document["device"]
        lacking = NOT_ON_A_GPU_YET if device == "cuda" else set()
        assert document["fixes"] == [name for name in FIX_NAMES if name not in lacking]
        assert sorted(document["programs"]) == shapes()
        sets = [*singles(), *variants(device), *together(), *pairs(device)]
        sets = [fixes for fixes in sets if not lacking & set(fixes)]
        for found in document["programs"].values():
            assert {"+".join(fixes) for fixes in sets} <= set(found["cells"])
            states = {cell[0] for cell in found["cells"].values()}
            late = {"not run"} if device == "cuda" else set()
            assert states <= {"runs", "not applicable", "declared bad"} | late


def test_pairs_on_a_gpu_are_of_all_fixes_that_need_one(tables: Any) -> None:
    document = next(one for one in tables.results() if one["device"] == "cpu")
    without = {
        text.split("=")[0]
        for found in document["programs"].values()
        for text, (_, _, why) in found["cells"].items()
        if "+" not in text and NO_DEVICE in found["whys"][why]
    }
    assert without
    assert without <= set(on_a_gpu())
    assert {"amp", "compile", "channels_last", "sdpa", "fused_optimizer"} <= set(on_a_gpu())
    assert not {"workers", "cache", "batch", "threads"} & set(on_a_gpu())


def test_the_results_name_no_folder_of_a_machine(tables: Any) -> None:
    own = [str(Path.home()), tempfile.gettempdir(), str(Path(__file__).resolve().parents[2])]
    for document in tables.results():
        text = json.dumps(document)
        assert [folder for folder in own if f"{folder}/" in text] == []
