"""`stepscope.apply`: fixes in a plain process, once each, with nothing that observes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import warm
from seeded import plain, trial

import stepscope
from stepscope.fixes.registry import FIX_NAMES
from stepscope.record.fix import FixState, fix_outcomes

TRAINING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    def main():
        torch.manual_seed(1)
        data = TensorDataset(torch.randn(48, 3, 8, 8), torch.randint(0, 4, (48,)))
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for _ in range(2):
            for inputs, targets in loader:
                loss = nn.functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item())
        return model, loader
"""


def program(call: str, after: str = "") -> str:
    """The training with a call that applies fixes, and what it prints at its end."""
    body = dedent(TRAINING).replace(
        "import torch\n", f"import stepscope\nimport torch\n\n{call}\n", 1
    )
    return f"{body}\n\nif __name__ == '__main__':\n    model, loader = main()\n    {after}\n"


def told(text: str) -> dict[str, list[str]]:
    """What a program printed as JSON in its last line."""
    found: dict[str, list[str]] = json.loads(text.splitlines()[-1])
    return found


OUTCOMES = "import json; print(json.dumps({o.name: o.state for o in fixes.outcomes}))"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["quicker"], "no fix named quicker"),
        (["cuda_grap"], "did you mean cuda_graph?"),
        (["amp=bf17"], "amp=bf17: use bf16, fp16"),
        (["pin=3"], "pin takes no value"),
        (["pin", "pin"], "given twice"),
        (["compile", "cuda_graph"], "cannot be combined"),
        (["batch"], "needs a number"),
        ([], "name fixes"),
        ([3], "name fixes"),
        ([["pin"]], "name fixes"),
        ([""], "no fix named"),
    ],
    ids=str,
)
def test_what_cannot_be_applied_is_refused_before_anything_changes(asked, said):
    before = list(sys.meta_path), dict(os.environ)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        stepscope.apply(*asked)
    assert said in str(refused.value)
    assert (list(sys.meta_path), dict(os.environ)) == before


def test_an_unknown_name_comes_with_those_that_are_known():
    with pytest.raises(ValueError, match="known: ") as refused:
        stepscope.apply("pin", "nonsense")
    assert all(name in str(refused.value) for name in FIX_NAMES)


@pytest.mark.launches
def test_applied_before_torch_is_imported_it_waits_for_it(tmp_path):
    source = """
        import os, sys
        import stepscope
        assert "torch" not in sys.modules and "stepscope.api" not in sys.modules
        fixes = stepscope.apply("channels_last", "cuda_graph", "expandable_segments")
        assert "torch" not in sys.modules and fixes.outcomes == ()
        print(repr(fixes), "expandable_segments:True" in os.environ["PYTORCH_CUDA_ALLOC_CONF"])
        import torch
        model = torch.nn.Conv2d(3, 4, 3)
        model(torch.zeros(1, 3, 8, 8))
        print(model.weight.stride(), fixes)
    """
    (tmp_path / "program.py").write_text(dedent(source))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n", 1)
    assert first == "<fixes, waiting for torch> True"
    assert second.startswith("(27, 1, 9, 3) ")
    assert "channels_last: applied: Conv2d, called at program.py:10" in second
    assert "cuda_graph: not applicable: no CUDA device" in second
    warned = [line for line in done.stderr.splitlines() if "Warning" in line]
    told = "program.py:5: UserWarning: stepscope:"
    assert [line.partition(told)[2] for line in warned] == [
        " expandable_segments: no CUDA device",
        " cuda_graph: no CUDA device",
    ]
    assert os.listdir(tmp_path) == ["program.py"]


FIXES = ("channels_last", "amp=bf16", "workers=1", "fused_optimizer", "threads=1")


def test_the_losses_are_those_of_the_same_fixes_in_a_run(tmp_path):
    call = f"fixes = stepscope.apply{FIXES}"
    alone = plain(tmp_path / "alone", program(call))
    whole = dedent(TRAINING) + "\n\nif __name__ == '__main__':\n    main()\n"
    run = trial(tmp_path / "run", whole, seed=0, fixes=FIXES)
    bare = plain(tmp_path / "bare", whole)
    assert [float(line) for line in alone.split()] == run.losses
    assert alone != bare
    assert os.listdir(tmp_path / "alone") == ["program.py"]


def test_in_a_run_it_is_reported_and_what_the_run_applies_too_is_applied_once(tmp_path):
    call = 'fixes = stepscope.apply("channels_last", "workers=1", "compile", "threads=1")'
    asked = ("workers=2", "checkpointing")
    done = trial(tmp_path / "run", program(call, OUTCOMES), seed=0, fixes=asked)
    outcomes = {one.name: one for one in fix_outcomes(done.facts.fixes)}
    assert sorted(outcomes) == ["channels_last", "checkpointing", "compile", "threads", "workers"]
    assert outcomes["workers"].value == 2
    assert outcomes["workers"].applied[0].after == 2
    assert outcomes["channels_last"].state == FixState.APPLIED
    assert outcomes["channels_last"].applied[0].object == "Sequential"
    assert outcomes["compile"].reason.id == "excluded"
    assert told(done.out)["workers"] == "applied"
    assert len(done.losses) == 12


def test_a_program_that_applies_them_counts_as_many_steps_under_a_budget(tmp_path):
    call = 'fixes = stepscope.apply("channels_last")'
    whole = program(call).replace("range(2)", "range(30)")
    done = trial(tmp_path / "run", whole, seed=0, overhead=0.0001)
    assert len(done.losses) == 180


def test_calling_it_again_changes_nothing(tmp_path):
    call = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        fixes = stepscope.apply("workers=1", "cuda_graph", "fused_optimizer")
        fixes = stepscope.apply("workers=2", "foreach")
said = [str(one.message) for one in caught]
"""
    out = plain(tmp_path / "a", program(call, f"print(loader.num_workers, said); {OUTCOMES}"))
    assert told(out) == {
        "workers": "applied",
        "cuda_graph": "not applicable",
        "fused_optimizer": "applied",
        "foreach": "not applicable",
    }
    number, _, said = out.splitlines()[-2].partition(" ")
    assert number == "1"
    assert eval(said) == [
        "stepscope: cuda_graph: no CUDA device",
        "stepscope: workers: applied already, as 1",
        "stepscope: foreach: cannot be combined with fused_optimizer, which is applied already",
    ]


PATCHED = """
def functions():
    from torch.utils.data import dataloader
    owners = (torch, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.autograd,
              torch.cuda, dataloader.DataLoader, dataloader._BaseDataLoaderIter, sys)
    return {(o.__name__, k): v for o in owners for k, v in list(vars(o).items()) if callable(v)}

import sys
before = functions()
fixes = stepscope.apply(%s)
after = functions()
print(sorted(name for _, name in after if after[_, name] is not before.get((_, name))))
"""


@pytest.mark.parametrize(
    ("asked", "patched"),
    [
        ('"cuda_graph", "prefetch", "pin"', []),
        ('"drop_last"', ["__init__", "excepthook"]),
        ('"channels_last"', ["__call__", "__init__", "excepthook", "load_state_dict"]),
    ],
)
def test_no_more_is_patched_than_the_fix_needs(tmp_path, asked, patched):
    out = plain(tmp_path / "a", program(PATCHED % asked))
    assert out.splitlines()[0] == str(patched)


def test_a_fix_that_found_nothing_to_do_says_so_at_the_end(tmp_path):
    said = stderr(tmp_path, program('fixes = stepscope.apply("sdpa", "cache")'))
    assert said.count("UserWarning") == 2
    assert "stepscope: sdpa: no attention was found" in said
    assert "program.py:5: UserWarning: stepscope: cache: " in said


def test_a_script_that_only_shows_its_help_is_told_nothing(tmp_path):
    assert stderr(tmp_path, 'import stepscope\nstepscope.apply("sdpa")\nprint("usage: …")\n') == ""


def test_a_program_that_a_fix_breaks_ends_with_its_traceback_and_the_reason(tmp_path):
    source = program('fixes = stepscope.apply("batch=12")').replace(
        "model(inputs)", "model(inputs.view(8, 3, 8, 8))"
    )
    said = stderr(tmp_path, source, code=1)
    assert "Traceback (most recent call last)" in said
    assert "stepscope: batch: the program relies on batches of 8" in said


def stderr(folder: Path, source: str, code: int = 0) -> str:
    path = folder / "program.py"
    path.write_text(dedent(source))
    done = warm.execute([sys.executable, str(path)], folder, {**os.environ})
    assert done.exit_code == code, done.stderr
    return done.in_utf8().stderr


def test_models_of_a_program_that_only_infers_are_found(tmp_path):
    source = """
        import stepscope, torch
        from torch import nn
        fixes = stepscope.apply("channels_last")
        original = nn.Module.__call__
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        with torch.no_grad():
            for _ in range(4):
                model(torch.zeros(2, 3, 8, 8))
        print(model[0].weight.is_contiguous(memory_format=torch.channels_last))
        print(nn.Module.__call__ is nn.Module._wrapped_call_impl)
    """
    assert plain(tmp_path / "a", source).split() == ["True", "True"]


def test_it_goes_on_in_and_after_a_block_that_is_observed(tmp_path):
    source = """
        import stepscope, torch
        from torch import nn
        fixes = stepscope.apply("channels_last", "workers=1")
        def step():
            model = nn.Sequential(nn.Conv2d(3, 8, 3))
            loader = torch.utils.data.DataLoader(range(4), batch_size=2)
            model(torch.zeros(2, 3, 8, 8)).sum().backward()
            last = model[0].weight.is_contiguous(memory_format=torch.channels_last)
            return last, loader.num_workers
        print(step())
        with stepscope.observe(window=0) as run:
            stepscope.apply("drop_last", "workers=1")
            print(step())
        print(step())
    """
    assert plain(tmp_path / "a", source).splitlines() == ["(True, 1)"] * 3


def test_in_a_forked_child_fixes_rest(tmp_path):
    source = """
        import os, stepscope, torch
        fixes = stepscope.apply("workers=1")
        if os.fork():
            os.wait()
        print(torch.utils.data.DataLoader(range(4)).num_workers, flush=True)
    """
    assert plain(tmp_path / "a", source).split() == ["0", "1"]


def test_variables_that_torch_reads_at_its_start_come_too_late_after_it(tmp_path):
    source = 'import torch, stepscope\nstepscope.apply("expandable_segments")\n'
    said = stderr(tmp_path, source)
    assert "expandable_segments: it sets environment variables" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_and_early_copies_act_in_a_plain_process(tmp_path):
    move = "inputs, targets = inputs.cuda(), targets.cuda()\n            loss = "
    whole = program(
        'fixes = stepscope.apply("prefetch", "cuda_graph", "pin")', f"print(fixes); {OUTCOMES}"
    )
    whole = whole.replace("loss = ", move, 1).replace(
        "nn.Linear(288, 4))", "nn.Linear(288, 4)).cuda()"
    )
    out = plain(tmp_path / "a", whole)
    assert told(out) == {"prefetch": "applied", "cuda_graph": "applied", "pin": "applied"}
