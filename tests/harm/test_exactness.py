"""exact means exact: with a fix that says so, a program sees what it sees without it.

Each of many small stateful programs runs bare and with each fix that concerns it. Whatever the fix
does, either nothing differs or it does not call itself exact.
"""

import random
from pathlib import Path
from typing import Any

import changing_data  # noqa: F401  (adds its programs)
import numpy as np
import pytest
import stateful_blocks
import torch
from fixing import Fixed, fixed
from innocent_data import INNOCENT
from meta_copies import pinned_copies
from stateful_data import PROGRAMS, dataset
from torch.utils.data import DataLoader

from stepscope.fixes.data import recycle
from stepscope.fixes.memory.checkpointing import INPUT_CHANGED
from stepscope.fixes.registry import fix_named
from stepscope.record.fix import FixKind, FixState

SHUFFLED = sorted(PROGRAMS)
random.Random(3).shuffle(SHUFFLED)
CRASHING = {"batch_kept_by_the_dataset"}
"""A worker that changes a tensor while torch hands it over may crash, with or without a fix."""
IN_WORKERS = [name for name in SHUFFLED if name not in CRASHING]
RACING = {
    "shared_value_in_an_epoch",
    "shared_tensor_in_an_epoch",
    "shared_rows",
    "one_batch_filled_again",
}
"""What workers see of these depends on how far ahead they are, with or without a fix."""
SETTLED = [name for name in IN_WORKERS if name not in RACING]


def a_sixth(names: Any) -> list[Any]:
    """All of them; five of six, which start workers, only where time is no matter."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if place % 6 else [])
        for place, name in enumerate(names)
    ]


def run_program(program: Any, **arguments: Any) -> list[Any]:
    """What a program sees; `arguments` are those of its loaders."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    return program(lambda data, **more: DataLoader(data, **{"batch_size": 2} | arguments | more))


def is_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def says_exact(run: Fixed, name: str) -> bool:
    told = run.outcomes()[name]
    return told.state == FixState.APPLIED and told.kind == FixKind.EXACT


def in_process(program: Any, folder: Path, name: str) -> tuple[bool, bool]:
    """Whether what a program sees stays the same with a fix, and whether that says so."""
    bare = run_program(program)
    needs_a_gpu = fix_named(name.partition("=")[0]).needs == "cuda"
    with pinned_copies(folder, name) if needs_a_gpu else fixed(folder, name) as run:
        got = run_program(program)
    return is_same(bare, got), says_exact(run, name.partition("=")[0])


@pytest.mark.parametrize("fix", ["cache=1M", "pin", "prefetch"])
@pytest.mark.parametrize("name", SHUFFLED)
def test_samples_stay_or_it_is_not_called_exact(tmp_path, name, fix):
    same, exact = in_process(PROGRAMS[name], tmp_path, fix)
    assert same or not exact


@pytest.mark.parametrize("name", a_sixth(IN_WORKERS))
def test_samples_from_workers_stay_or_it_is_not_called_exact(tmp_path, name):
    same, exact = in_process(PROGRAMS[name], tmp_path, "workers=1")
    assert same or not exact


def test_workers_tell_batches_that_show_an_array_from_new_ones(tmp_path):
    with fixed(tmp_path / "shown", "workers=1") as run:
        run_program(PROGRAMS["rows_of_an_array"])
    reason = run.fixes()["workers"]["where"][-1]
    assert "batches hold `Made.rows` itself, not a copy" in reason
    assert not says_exact(run, "workers")
    with fixed(tmp_path / "copied", "workers=1") as run:
        run_program(copies_of_an_array)
    assert says_exact(run, "workers")


def copies_of_an_array(load):
    made = dataset(lambda self, i: torch.from_numpy(self.rows[i] + 1), rows=np.zeros((9, 2)))
    return list(load(made, batch_size=None))


@pytest.mark.parametrize("name", a_sixth(IN_WORKERS[1:] + IN_WORKERS[:1]))
def test_samples_from_kept_workers_stay_or_it_is_not_called_exact(tmp_path, name):
    bare = run_program(PROGRAMS[name], num_workers=1)
    with fixed(tmp_path, "persistent") as run:
        got = run_program(PROGRAMS[name], num_workers=1)
    assert is_same(bare, got) or not says_exact(run, "persistent")


@pytest.mark.parametrize("name", a_sixth(SETTLED[2:] + SETTLED[:2]))
def test_samples_from_pinned_batches_of_workers_stay_or_it_is_not_called_exact(tmp_path, name):
    bare = run_program(PROGRAMS[name], num_workers=1)
    with pinned_copies(tmp_path, "pin") as run:
        got = run_program(PROGRAMS[name], num_workers=1)
    assert is_same(bare, got) or not says_exact(run, "pin")


@pytest.mark.parametrize("name", a_sixth(SETTLED[3:] + SETTLED[:3]))
def test_samples_in_memory_that_is_used_again_stay(tmp_path, monkeypatch, name):
    monkeypatch.setattr(recycle, "_LEAST", 1)  # bytes: the batches are small
    bare = run_program(PROGRAMS[name], num_workers=1)
    with fixed(tmp_path, "recycle") as run:
        got = run_program(PROGRAMS[name], num_workers=1)
    assert is_same(bare, got)
    assert run.outcomes()["recycle"].kind in (FixKind.EXACT, None)


def test_what_a_pinned_batch_shares_is_named(tmp_path):
    with pinned_copies(tmp_path, "pin") as run:
        run_program(PROGRAMS["rows_in_lists"])
    (reason,) = run.fixes()["pin"]["where"]
    assert "batches hold `rows` itself, not a copy" in reason
    with pinned_copies(tmp_path / "workers", "pin") as run:
        run_program(PROGRAMS["shared_rows"], num_workers=1)
    (reason,) = run.fixes()["pin"]["where"]
    assert "holds a shared tensor" in reason
    assert not says_exact(run, "pin")


@pytest.mark.parametrize("fix", ["cache=1M", "pin", "prefetch"])
@pytest.mark.parametrize("name", INNOCENT)
def test_innocent_programs_get_exact_fixes(tmp_path, name, fix):
    assert in_process(INNOCENT[name], tmp_path, fix) == (True, True)


@pytest.mark.parametrize("name", a_sixth(INNOCENT))
def test_innocent_programs_get_exact_workers(tmp_path, name):
    assert in_process(INNOCENT[name], tmp_path / "workers", "workers=1") == (True, True)
    bare = run_program(INNOCENT[name], num_workers=1)
    with fixed(tmp_path / "kept", "persistent") as run:
        assert is_same(run_program(INNOCENT[name], num_workers=1), bare)
    assert says_exact(run, "persistent")


@pytest.mark.parametrize("name", stateful_blocks.BLOCKS)
def test_blocks_leave_the_same_or_are_not_called_exact(tmp_path, capsys, name):
    bare = stateful_blocks.train(stateful_blocks.BLOCKS[name]())
    printed = capsys.readouterr().out
    with fixed(tmp_path, "checkpointing") as run:
        got = stateful_blocks.train(stateful_blocks.BLOCKS[name]())
    same = is_same(bare, got) and capsys.readouterr().out == printed
    assert same or not says_exact(run, "checkpointing")
    if name in stateful_blocks.HANDLED:
        assert same
        assert says_exact(run, "checkpointing")


@pytest.mark.parametrize("between", ["eval", "global", "input"])
@pytest.mark.parametrize("name", ["dropout", "uses_a_global", "changes_its_input_by_function"])
def test_what_changes_before_backward_is_put_back_or_told(tmp_path, name, between):
    try:
        bare = stateful_blocks.train(stateful_blocks.BLOCKS[name](), between)
    except RuntimeError:
        pytest.skip("torch itself forbids it")
    why, got = None, []
    with fixed(tmp_path, "checkpointing") as run:
        try:
            got = stateful_blocks.train(stateful_blocks.BLOCKS[name](), between)
        except RuntimeError as error:  # torch looks after the inputs itself
            why = fix_named("checkpointing").explain(error, "")
    if why is None:
        assert is_same(bare, got) or not says_exact(run, "checkpointing")
    else:
        assert why.reason == INPUT_CHANGED


def test_there_are_many():
    assert len(PROGRAMS) + len(stateful_blocks.BLOCKS) >= 100
