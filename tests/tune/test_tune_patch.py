"""The accepted fixes as a diff: located, merged, compiled, and left to the user where unsure."""

import os
import subprocess
from textwrap import dedent

import pytest
from patching import at, calls_apply, project

from stepscope.measure.source_diff import apply_diff
from stepscope.record.fix import (
    OTHER_TARGET,
    Applied,
    DataChange,
    SourceLine,
    Target,
    Trait,
    TraitKind,
    Variation,
)

LOADER = """
    import torch
    from torch.utils.data import DataLoader

    def main():
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for batch in loader:
            step(batch)
"""
AT = at(5)
ON = Applied(Target("tf32"), "Net", after="on")


def test_arguments_of_several_fixes_meet_in_one_call(tmp_path):
    made = project(tmp_path, LOADER)
    patch = made.patch("workers=4", "persistent", "pin", workers=AT, persistent=AT, pin=AT)
    after = made.patched(patch)
    assert (
        "    loader = DataLoader(data, batch_size=8, shuffle=True, "
        "num_workers=4, persistent_workers=True, pin_memory=True)\n"
    ) in after
    assert [(edit.fix, edit.file, edit.line) for edit in patch.edits] == [
        ("workers", "train.py", 5),
        ("persistent", "train.py", 5),
        ("pin", "train.py", 5),
    ]
    assert patch.by_hand == ()


def test_places_in_a_remark_are_not_where_the_fix_took_hold(tmp_path):
    made = project(tmp_path, LOADER)
    because = Trait(TraitKind.USES, "torch.rand", SourceLine("data.py", 7))
    remark = Variation(DataChange.DRAWS, because=because)
    patch = made.patch("workers=4", workers=at(5, varies=remark))
    assert [(edit.file, edit.line) for edit in patch.edits] == [("train.py", 5)]
    assert patch.by_hand == ()


def test_a_fix_of_a_run_that_kept_sentences_only_is_applied_by_a_call(tmp_path):
    made = project(tmp_path, LOADER)
    patch = made.patch("workers=4", workers=Applied(OTHER_TARGET, text="DataLoader at train.py:5"))
    assert "where it took effect was not recorded" in calls_apply(patch)["workers"]


def test_an_argument_that_is_there_is_replaced_and_all_else_stays(tmp_path):
    made = project(
        tmp_path,
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(  # größer
            data,
            num_workers=args.workers,  # few
            batch_size=(8),
        )
        """,
    )
    after = made.patched(made.patch("workers=4", workers=at(2)))
    assert after == dedent(
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(  # größer
            data,
            num_workers=4,  # few
            batch_size=(8),
        )
        """
    ).lstrip("\n")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("DataLoader(data)", "DataLoader(data, num_workers=2)"),
        ("DataLoader(data,)", "DataLoader(data, num_workers=2)"),
        ("DataLoader(data, batch_size=(4))", "DataLoader(data, batch_size=(4), num_workers=2)"),
        ("DataLoader(*a, **kwargs)", 'DataLoader(*a, **{**kwargs, "num_workers": 2})'),
        ("DataLoader(data, **cfg.loader)", 'DataLoader(data, **{**cfg.loader, "num_workers": 2})'),
        ("DataLoader(**{**k, 'a': 1})", "DataLoader(**{**k, 'a': 1, \"num_workers\": 2})"),
        ("DataLoader(x, **a, y=1, **b)", 'DataLoader(x, **{**a, **b, "num_workers": 2}, y=1)'),
        ("DataLoader(**{'num_workers': 0,})", "DataLoader(**{'num_workers': 2,})"),
        ("DataLoader(data, 8, True, None, None, 0)", "DataLoader(data, 8, True, None, None, 2)"),
        ("DataLoader(\n    data\n)", "DataLoader(\n    data,\n    num_workers=2\n)"),
        (
            "DataLoader(\n    data,\n    shuffle=True,  # why\n)",
            "DataLoader(\n    data,\n    shuffle=True,  # why\n    num_workers=2,\n)",
        ),
        (
            "DataLoader(\n    data,\n    shuffle=True  # why\n)",
            "DataLoader(\n    data,\n    shuffle=True,  # why\n    num_workers=2\n)",
        ),
        ("DataLoader(data,\n           shuffle=f(1, 2))",
         "DataLoader(data,\n           shuffle=f(1, 2), num_workers=2)"),
        ("[DataLoader(data), 'ä']", "[DataLoader(data, num_workers=2), 'ä']"),
    ],
)  # fmt: skip
def test_an_argument_is_added_in_the_style_of_the_call(tmp_path, call, expected):
    made = project(tmp_path, f"import torch\nloader = {call}\nprint(loader)\n")
    after = made.patched(made.patch("workers=2", workers=at(2)))
    assert after == f"import torch\nloader = {expected}\nprint(loader)\n"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (
            "from torch.utils.data import DataLoader as Batches\nb = Batches(data)\n",
            2,
            "b = Batches(data, num_workers=2)",
        ),
        (
            "Make = functools.partial(data.DataLoader, num_workers=0)\nb = Make(data)\n",
            2,
            "b = Make(data, num_workers=2)",
        ),
        (
            "class Mine(DataLoader):\n    pass\nclass Own(Mine):\n    pass\nb = Own(data, 4)\n",
            5,
            "b = Own(data, 4, num_workers=2)",
        ),
        (
            "class Mine(DataLoader):\n    def __init__(self, data):\n"
            "        super().__init__(data, batch_size=f(1))\n",
            3,
            "        super().__init__(data, batch_size=f(1), num_workers=2)",
        ),
    ],
)
def test_a_loader_is_known_by_whatever_name_the_file_gives_it(tmp_path, text, line, expected):
    made = project(tmp_path, text)
    after = made.patched(made.patch("workers=2", workers=at(line)))
    assert after.splitlines()[line - 1] == expected


def test_workers_and_what_needs_them_meet_in_the_dictionary_of_a_call(tmp_path):
    made = project(tmp_path, "import torch\nloader = DataLoader(data, **kwargs)\n")
    patch = made.patch("workers=2", "persistent", workers=at(2), persistent=at(2))
    assert (
        'DataLoader(data, **{**kwargs, "num_workers": 2, "persistent_workers": True})'
        in made.patched(patch)
    )


def test_a_loader_made_in_the_head_of_a_loop_is_found(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        for batch in DataLoader(data):
            other(DataLoader(batch))
        """,
    )
    after = made.patched(made.patch("workers=2", workers=at(2)))
    assert "for batch in DataLoader(data, num_workers=2):\n    other(DataLoader(batch))" in after


def test_moves_of_a_batch_no_longer_wait_and_neither_do_those_beside_them(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        for x, y, z in loader:
            x = x.to(device)
            y = y.to(device)
            z = z.to("cpu")
            a, b = x.cuda(), y.cuda()
        """,
    )
    patch = made.patch("pin", pin=[at(3), at(6)])
    after = made.patched(patch)
    assert "x = x.to(device, non_blocking=True)" in after
    assert "y = y.to(device, non_blocking=True)" in after
    assert 'z = z.to("cpu")' in after
    assert "a, b = x.cuda(non_blocking=True), y.cuda(non_blocking=True)" in after


def test_persistent_workers_are_not_written_where_there_are_no_workers(tmp_path):
    made = project(tmp_path, LOADER)
    patch = made.patch("persistent", persistent=AT)
    assert "no num_workers is written there" in calls_apply(patch)["persistent"]
    assert "persistent_workers" not in made.patched(patch)


def test_what_needs_workers_follows_them_into_the_call(tmp_path):
    made = project(tmp_path, LOADER.replace("DataLoader(data", "make['x'](data"))
    patch = made.patch("workers=4", "persistent", workers=AT, persistent=AT)
    assert 'stepscope.apply("workers=4", "persistent")\n' in made.patched(patch)


def test_fixes_that_no_line_expresses_are_applied_by_one_call_behind_the_imports(tmp_path):
    made = project(tmp_path, LOADER)
    fixes = ("cuda_graph", "prefetch", "workers=2", "cache=4G")
    applied = {"cuda_graph": at(6), "prefetch": AT, "cache": AT}
    patch = made.patch(*fixes[:3], workers=AT, **applied)
    assert patch.by_hand == ()
    assert calls_apply(patch).keys() == {"prefetch", "cuda_graph"}
    assert made.patched(patch).startswith(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "import stepscope\n"
        "\n"
        'stepscope.apply("prefetch", "cuda_graph")\n'
        "\n"
        "def main():\n"
        "    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)\n"
    )


def test_a_fix_written_in_some_places_only_is_applied_by_a_call_in_all(tmp_path):
    text = LOADER + "        x = x.to(device) if batch else y\n"
    made = project(tmp_path, text.replace("step(batch)", "step(of.to(batch))"))
    patch = made.patch("pin", "persistent", pin=[AT, at(3)])
    assert calls_apply(patch).keys() == {"pin"}
    assert "pin_memory" not in made.patched(patch)


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ("import more1\n\nmore1.main()\n", "def main():\n    f()\n",
         'import more1\nimport stepscope\n\nstepscope.apply("prefetch")\n\nmore1.main()\n'),
        ('"""Doc."""\nfrom __future__ import annotations\n\nimport more1\n',
         "x = 1\nloader = f()\n",
         '"""Doc."""\nfrom __future__ import annotations\n\n'
         'import stepscope\n\nstepscope.apply("prefetch")\nimport more1\n'),
        ("import more1\n", "class A:\n    loader = f()\n",
         'import stepscope\n\nstepscope.apply("prefetch")\nimport more1\n'),
        ("import sys; import more1\n", "def main():\n    f()\n",
         'import stepscope\n\nstepscope.apply("prefetch")\nimport sys; import more1\n'),
        ("print(1)\n", "def main():\n    f()\n",
         'import stepscope\n\nstepscope.apply("prefetch")\nprint(1)\n'),
    ],
    ids=["in a function", "while imported", "in a class", "two on a line", "no imports"],
)  # fmt: skip
def test_the_call_stands_before_what_it_acts_on(tmp_path, text, more, expected):
    made = project(tmp_path, text, more)
    assert made.patched(made.patch("prefetch", prefetch=at(2, "more1.py"))) == expected


@pytest.mark.parametrize("program", ["gone.py", "-m gone"])
def test_without_a_first_file_of_the_projects_the_user_is_told_what_to_do(tmp_path, program):
    made = project(tmp_path, LOADER)
    made.seen["run"]["program"] = program
    patch = made.patch("prefetch", "workers=2", prefetch=AT, workers=AT)
    assert [edit.fix for edit in patch.edits] == ["workers"]
    assert [one.fix for one in patch.by_hand] == ["prefetch"]
    assert "stepscope.apply: the program's first file was not found" in patch.by_hand[0].words


def test_a_fix_that_took_effect_nowhere_is_not_applied(tmp_path):
    patch = project(tmp_path, LOADER).patch("prefetch")
    assert patch.text is None
    assert patch.by_hand[0].fix == "prefetch"


SWITCHES = """
    \"\"\"Trains.\"\"\"
    from __future__ import annotations

    import argparse
    {torch}

    try:
        import wandb
    except ImportError:
        wandb = None
    import numpy as np

    def main():
        pass
"""


@pytest.mark.parametrize("torch", ["import torch", "from torch import nn", "import torch.nn as nn"])
def test_switches_stand_behind_the_imports_with_torch_imported_once(tmp_path, torch):
    made = project(tmp_path, SWITCHES.format(torch=torch))
    patch = made.patch("tf32", "cudnn_benchmark", "threads=2", tf32=ON)
    after = made.patched(patch)
    begin = after.index("import numpy as np\n") + len("import numpy as np\n")
    extra = "" if torch == "import torch" else "import torch\n"
    assert after[begin:].startswith(
        f"{extra}\n"
        "torch.set_num_threads(2)\n"
        'torch.set_float32_matmul_precision("high")\n'
        "torch.backends.cudnn.allow_tf32 = True\n"
        "torch.backends.cudnn.benchmark = True\n\ndef main"
    )


def test_a_variable_the_allocator_reads_is_set_before_any_import(tmp_path):
    made = project(tmp_path, SWITCHES.format(torch="import torch"))
    after = made.patched(made.patch("expandable_segments"))
    lines = after.split("\n")
    assert lines[3:5] == ["import os", lines[4]]
    assert lines[4].startswith("os.environ[")
    assert lines[5] == "import argparse"


def test_a_switch_the_program_sets_itself_is_overridden_by_a_call(tmp_path):
    made = project(tmp_path, SWITCHES.format(torch="import torch"))
    own = Applied(Target("tf32_setting"), overrides=SourceLine("train.py", 12))
    patch = made.patch("tf32", tf32=[ON, own])
    assert "sets it differently itself" in calls_apply(patch)["tf32"]


def test_a_program_that_begins_elsewhere_is_switched_where_torch_is_imported(tmp_path):
    made = project(tmp_path, "import more1\nmore1.main()\n", "import torch\n\nprint(torch)\n")
    made.seen["run"]["program"] = "-m more1"
    patch = made.patch("cudnn_benchmark")
    assert [edit.file for edit in patch.edits] == ["more1.py"]
    made.seen["run"]["program"] = "train.py"
    assert "torch is not imported" in made.patch("cudnn_benchmark").by_hand[0].words


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lib/site-packages/other.py", "not a file of this project"),
        ("env/train.py", "not a file of this project"),
        ("../train.py", "not a file of this project"),
        ("gone.py", "not a file of this project"),
        ("unseen.py", "no line of unseen.py was seen running"),
    ],
)
def test_only_the_users_own_files_that_ran_are_changed(tmp_path, name, why):
    made = project(tmp_path, LOADER)
    for other in ("lib/site-packages/other.py", "env/train.py", "../train.py", "unseen.py"):
        (made.cwd / other).parent.mkdir(parents=True, exist_ok=True)
        (made.cwd / other).write_bytes((made.cwd / "train.py").read_bytes())
    (made.cwd / "env" / "pyvenv.cfg").write_text("")
    patch = made.patch("workers=2", workers=at(5, name))
    assert {edit.file for edit in patch.edits} == {"train.py"}
    assert why in calls_apply(patch)["workers"]


def test_a_file_changed_since_it_ran_is_left_alone(tmp_path):
    made = project(tmp_path, LOADER)
    path = made.cwd / "train.py"
    before = path.read_text()
    path.write_text(before.replace("shuffle=True", "shuffle=False"))
    os.utime(path, (0, 0))
    assert "was changed since it ran" in made.patch("workers=2", workers=AT).by_hand[0].words
    path.write_text(before)
    os.utime(path, (4e9, 4e9))
    assert "was changed since it ran" in made.patch("workers=2", workers=AT).by_hand[0].words


def test_an_edit_that_would_not_compile_is_left_out(tmp_path):
    made = project(tmp_path, "import torch\na = DataLoader(x for x in y)\nb = DataLoader(z)\n")
    where = [at(2), at(3)]
    patch = made.patch("workers=2", workers=where)
    assert made.patched(patch).endswith("a = DataLoader(x for x in y)\nb = DataLoader(z)\n")
    assert calls_apply(patch)["workers"].endswith("(train.py:2: it would not compile)")


@pytest.mark.parametrize("tool", [["git", "apply", "--check"], ["patch", "-p1", "--dry-run"]])
def test_git_and_patch_take_it(tmp_path, tool):
    windows = dedent(LOADER).lstrip("\n").replace("\n", "\r\n")
    made = project(tmp_path, windows, "import torch\nl = DataLoader(a)")
    where = [AT, at(2, "more1.py")]
    patch = made.patch("workers=2", "tf32", workers=where, tf32=ON)
    assert {edit.file for edit in patch.edits} == {"train.py", "more1.py"}
    (tmp_path / "stepscope.patch").write_text(patch.text or "", newline="")
    try:
        done = subprocess.run(
            [*tool, "--binary"] if tool[0] == "patch" else tool,
            cwd=made.cwd,
            stdin=open(tmp_path / "stepscope.patch"),  # noqa: SIM115
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip(f"no {tool[0]} here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n" not in made.patched(patch).replace("\r\n", "")
    apply_diff(made.cwd, "")
    assert (made.cwd / "more1.py").read_text().endswith("l = DataLoader(a, num_workers=2)")
