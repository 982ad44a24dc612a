"""What benchmarks/wild.py makes of public programs: manifest, copies, data, verdicts, table."""

import gzip
import importlib
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Any]]:
    """Imports the benchmark's modules by name; they are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if name.startswith(("_wild_", "wild", "_about", "_overhead", "_predictions", "busy")):
            del sys.modules[name]


@pytest.fixture
def judge(load):
    return load("_wild_judge")


@pytest.fixture
def checkouts(load):
    return load("_wild_checkouts")


@pytest.fixture
def data(load):
    return load("_wild_data")


def ran(judge: Any, output: str, code: int | None = 0, **files: str) -> Any:
    return judge.Ran(code, 1.0, output, files)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, str]:
    """A folder of checkouts with one work tree, and its first commit."""
    tree = tmp_path / "checkouts" / "some+one"
    (tree / "part").mkdir(parents=True)
    (tree / "part" / "main.py").write_text("print(1)\n")
    (tree / "large.bin").write_bytes(b"x" * 1000)
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "one")
    commit = git(tree, "rev-parse", "HEAD")
    (tree / "part" / "main.py").write_text("print(2)\n")
    git(tree, "commit", "-qam", "two")
    return tmp_path / "checkouts", commit


def program(checkouts: Any, **given: Any) -> Any:
    told = {
        "name": "one",
        "task": "t",
        "repository": "some/one",
        "commit": "c",
        "command": "main.py",
    }
    return checkouts.Program(**told | given)


def test_every_program_of_the_manifest_is_well_formed(checkouts, data):
    found = checkouts.programs()
    assert len(found) >= 30
    assert len({one.repository for one in found}) >= 20
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert set(one.devices) <= {"cpu", "cuda"}
        assert one.words("cpu")
        assert all(what.split()[0] in data.MAKERS for what in one.data.values()), one.name
        assert not (one.limit and one.steps), f"{one.name}: a limit tells its steps"
    made = {what.split()[0] for one in found for what in one.data.values()}
    assert made == set(data.MAKERS), "a maker that no program needs"


def test_an_unknown_field_of_the_manifest_is_named(checkouts, tmp_path):
    path = tmp_path / "programs.toml"
    path.write_text(
        '[commits]\n"a/b" = "1"\n[[program]]\nname = "x"\nrepository = "a/b"\ncolour = 1\n'
    )
    with pytest.raises(ValueError, match=r"programs.toml, x: .*colour"):
        checkouts.programs(path)


def test_a_copy_has_the_files_of_the_commit_and_only_the_paths_asked(checkouts, checkout, tmp_path):
    folder, commit = checkout
    checkouts.unpack(program(checkouts, commit=commit), folder, tmp_path / "whole")
    assert (tmp_path / "whole" / "part" / "main.py").read_text() == "print(1)\n"
    assert (tmp_path / "whole" / "large.bin").stat().st_size == 1000
    checkouts.unpack(program(checkouts, commit=commit, paths=("part",)), folder, tmp_path / "some")
    assert [one.name for one in (tmp_path / "some").iterdir()] == ["part"]


def test_a_bare_git_directory_serves_and_files_it_lacks_are_left_out(checkouts, checkout, tmp_path):
    folder, commit = checkout
    tree = folder / "some+one"
    bare = tmp_path / "mirror" / "some+one" / "repo"
    bare.parent.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(tree), str(bare)], check=True)
    blob = git(tree, "rev-parse", f"{commit}:large.bin")
    (bare / "objects" / blob[:2] / blob[2:]).unlink()
    checkouts.unpack(program(checkouts, commit=commit), tmp_path / "mirror", tmp_path / "copy")
    assert (tmp_path / "copy" / "part" / "main.py").read_text() == "print(1)\n"
    assert not (tmp_path / "copy" / "large.bin").exists()


def test_a_checkout_or_commit_that_is_not_there_is_named(checkouts, checkout, tmp_path):
    folder, _ = checkout
    with pytest.raises(checkouts.CheckoutError, match="other/one is not among"):
        checkouts.unpack(program(checkouts, repository="other/one"), folder, tmp_path / "a")
    with pytest.raises(checkouts.CheckoutError, match="has no commit"):
        checkouts.unpack(program(checkouts, commit="f" * 40), folder, tmp_path / "b")


def test_idx_files_say_their_shape(data, tmp_path):
    data.make("idx 20 5", tmp_path / "raw")
    content = (tmp_path / "raw" / "train-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">HBB3I", content[:16]) == (0, 8, 3, 20, 28, 28)
    assert len(content) == 16 + 20 * 28 * 28
    assert len((tmp_path / "raw" / "t10k-labels-idx1-ubyte").read_bytes()) == 8 + 5


def test_cifar_pickles_hold_images_and_labels(data, tmp_path):
    data.make("cifar10 50 10", tmp_path / "c")
    batch = pickle.loads((tmp_path / "c" / "data_batch_3").read_bytes())
    assert batch["data"].shape == (10, 3072)
    assert len(batch["labels"]) == 10


@pytest.mark.parametrize(
    "what",
    ["idx 20 5", "cifar100 20 5", "images 2 32", "imagefolder 2 2 32", "masks 2 32",
     "boxes 2 64 3", "text 5 4", "corpus 8 4", "tokens 100 65",
     "zipped_text 500", "citations 20 30 3"],
)  # fmt: skip
def test_the_same_numbers_make_the_same_data(data, tmp_path, what):
    data.make(what, tmp_path / "made")
    first = contents(tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "old")
    data.make(what, tmp_path / "made")
    assert contents(tmp_path / "made") == first
    assert all(first.values())


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {str(one.relative_to(path)): one.read_bytes() for one in files}


def test_gzipped_text_has_the_bytes_asked_for(data, tmp_path):
    data.make("zipped_text 700", tmp_path / "text.gz")
    assert len(gzip.decompress((tmp_path / "text.gz").read_bytes())) == 700


def test_an_unknown_maker_is_named(data, tmp_path):
    with pytest.raises(ValueError, match="no maker clouds"):
        data.make("clouds 3", tmp_path / "a")


def test_output_that_bare_runs_repeat_must_be_the_same(judge):
    bare = [ran(judge, "loss 0.5 in 3 s\n"), ran(judge, "loss 0.5 in 4 s\n")]
    same = judge.kept(bare, ran(judge, "loss 0.5 in 9 s\n"), limited=False)
    assert same.output
    assert same.exit_code
    assert (same.tokens, same.of_tokens) == (4, 5)
    other = judge.kept(bare, ran(judge, "loss 0.6 in 3 s\n"), limited=False)
    assert not other.output
    assert other.changed == ("loss 0.5 in 3", "loss 0.6 in 3")


def test_a_third_bare_run_tells_what_two_had_alike_by_chance(judge):
    bare = [ran(judge, "time 0.02"), ran(judge, "time 0.02"), ran(judge, "time 0.05")]
    assert not judge.kept(bare[:2], ran(judge, "time 0.04"), limited=False).output
    assert judge.kept(bare, ran(judge, "time 0.04"), limited=False).output


def test_of_a_progress_bar_only_what_stays_is_compared(judge):
    bare = [ran(judge, "a\r10%\r50%\r100%\nend\r\n")] * 2
    assert judge.kept(bare, ran(judge, "a\r70%\r100%\nend\r\n"), limited=False).output
    assert not judge.kept(bare, ran(judge, "a\r70%\r99%\nend\r\n"), limited=False).output


def test_missing_or_added_output_is_a_change(judge):
    bare = [ran(judge, "a b c"), ran(judge, "a b c")]
    assert not judge.kept(bare, ran(judge, "a b"), limited=False).output
    assert not judge.kept(bare, ran(judge, "a b c d"), limited=False).output


def test_limited_runs_compare_what_all_have_printed(judge):
    bare = [ran(judge, "1 2 3 4", None), ran(judge, "1 2 3", None)]
    assert judge.kept(bare, ran(judge, "1 2"), limited=True).output
    assert judge.kept(bare, ran(judge, "1 2"), limited=True).exit_code is None
    assert not judge.kept(bare, ran(judge, "1 5"), limited=True).output


def test_an_exit_code_is_kept_or_not(judge):
    bare = [ran(judge, "", 3), ran(judge, "", 3)]
    assert judge.kept(bare, ran(judge, "", 3), limited=False).exit_code
    assert judge.kept(bare, ran(judge, "", 0), limited=False).exit_code is False


def test_files_that_repeat_must_be_the_same(judge):
    bare = [ran(judge, "", model="1", log="2"), ran(judge, "", model="1", log="3")]
    assert judge.kept(bare, ran(judge, "", model="1", log="4"), limited=False).output
    found = judge.kept(bare, ran(judge, "", model="9"), limited=False)
    assert (found.files, found.of_files, found.changed_files) == (1, 2, ("model",))
    assert judge.kept(bare, ran(judge, ""), limited=False).changed_files == ("model",)


@pytest.mark.parametrize(
    ("told", "limit", "steps"),
    [(60, None, 60), (r"after (\d+) batches", None, 41), (None, 30, 30), (60, 30, 30),
     (r"never (\d+)", None, None), (None, None, None)],
)  # fmt: skip
def test_steps_are_told_or_read_from_the_output(judge, told, limit, steps):
    assert judge.expected_steps(told, limit, "after 3 batches\nafter 41 batches") == steps


def finding(fix: str | None, speedup: float | None, **more: Any) -> dict[str, Any]:
    promise = speedup and {"speedup": speedup, "low": speedup - 0.1, "high": speedup + 0.1}
    named = fix and {"name": fix, "value": None}
    return {"id": f"group.{fix}", "predicted": promise, "fix": named, "where": []} | more


def test_only_promises_of_five_percent_are_measured(judge):
    found = [finding("a", 1.5), finding("b", 1.04), finding(None, 2.0), finding("c", None)]
    assert [one["fix"] for one in judge.promises({"findings": found})] == ["a"]


def steps(ms: float, samples: float | None = None) -> dict[str, Any]:
    return {"mean_ms": ms, "samples_per_step": samples}


def test_a_promise_is_measured_pair_by_pair(judge):
    base, fixed = map(steps, (10.0, 12.0, 30.0)), map(steps, (5.0, 6.0, 10.0))
    found = judge.measured({"fix": "a", "speedup": 2.0}, [*base], [*fixed])
    assert found["measured"] == 2.0
    assert found["pairs"] == [2.0, 2.0, 3.0]
    assert not found["per_sample"]


def test_larger_batches_are_compared_by_the_sample(judge):
    assert judge.measured({}, [steps(10.0, 8)], [steps(10.0, 16)])["measured"] == 2.0
    assert judge.measured({}, [steps(10.0, 8)], [steps(5.0)])["measured"] == 2.0


def row(**more: Any) -> dict[str, Any]:
    kept = {"exit_code": True, "output": True, "tokens": 5, "files": 0}
    return {
        "program": "one", "repository": "some/one", "task": "GAN", "problem": None,
        "step_ms": 12.0, "steps": 60, "expected_steps": 60, "kept": kept, "promises": [],
        "found": [{"id": "data.x", "at": "main.py:3"}], "set": None, "load": 1.5,
    } | more  # fmt: skip


HEAD = {
    "device": "cpu", "date": "2026-01-01", "versions": {"torch": "2.13"},
    "machine": {"cpu": {"model": "Some CPU", "usable_cores": 2}, "gpus": []},
}  # fmt: skip


def test_the_table_shows_wrong_steps_changed_output_losses_and_refusals(load):
    promise = {"fix": "pin", "speedup": 1.5, "low": 1.2, "high": 1.8}
    rows = {
        "one": row(promises=[promise | {"measured": 1.4}]),
        "two": row(steps=59, promises=[promise | {"measured": 0.8}]),
        "three": row(
            kept={"exit_code": True, "output": False, "tokens": 5, "files": 0},
            promises=[promise | {"refused": {"pin": ["no"]}}],
        ),
        "four": {"program": "four", "problem": "not installed: x"},
    }
    text = load("_wild_table").table(HEAD | {"rows": rows})
    assert "pin 1.50 → 1.40×" in text
    assert "| **59 of 60** |" in text
    assert "pin 1.50 → **0.80×**" in text
    assert "pin 1.50 → **refused**" in text
    assert "| **no** |" in text
    assert "- four: not installed: x" in text
    assert "Steps right: 2 of 3." in text
    assert "3; 1 refused, 2 measured, 1 a loss of more than 3%, 1 in range." in text


def test_the_table_shows_what_a_tune_proved(load):
    tune = {
        "ladder": [{"fix": "pin"}, {"fix": "workers=4"}],
        "final": {"speedup": 1.31, "proof": {"state": "matches", "because": None}},
        "patch": {"status": "measured", "applies": True, "exit_code": 0, "measured": 1.28},
    }
    text = load("_wild_table").table(HEAD | {"rows": {"one": row(tune=tune)}})
    assert "| one | pin + workers=4 | 1.31× | matches | runs, 1.28× |" in text


def test_a_row_is_measured_again_for_another_stepscope_or_a_missing_tune(load):
    known = load("wild")._known
    assert known({"stepscope": "abc", "problem": None}, "abc", tune=False)
    assert not known({"stepscope": "abc", "problem": None}, "abd", tune=False)
    assert not known({"stepscope": "abc", "problem": None}, "abc", tune=True)
    assert known({"stepscope": "abc", "problem": "fails bare"}, "abc", tune=True)
    assert not known(None, "abc", tune=False)


def test_generators_are_seeded_as_they_are_imported():
    code = "import numpy, random, torch; print(torch.rand(1), numpy.random.rand(), random.random())"
    environment = {"PYTHONPATH": str(BENCHMARKS / "wild_site"), "PATH": ""}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert np.isfinite(float(outputs.pop().split()[-1]))


def test_a_pack_holds_the_text_files_programs_need_and_serves_as_checkouts(
    checkouts, checkout, tmp_path, capsys
):
    folder, _ = checkout
    (folder / "some+one" / "part" / "logo.png").write_bytes(b"\x89PNG\0")
    git(folder / "some+one", "add", ".")
    git(folder / "some+one", "commit", "-qm", "three")
    newest = git(folder / "some+one", "rev-parse", "HEAD")
    ours = program(checkouts, commit=newest, paths=("part",))
    absent = program(checkouts, name="two", repository="no/where")
    checkouts.pack([ours, absent], folder, tmp_path / "pack.tar.xz")
    assert "two: no/where is not among the checkouts" in capsys.readouterr().err
    found = checkouts.unpacked(tmp_path / "pack.tar.xz", tmp_path / "unpacked")
    checkouts.unpack(ours, found, tmp_path / "copy")
    assert contents(tmp_path / "copy") == {"part/main.py": b"print(2)\n"}


def test_a_program_cut_short_is_run_again(load):
    wild = load("wild")
    cut = {"stepscope": "a", "problem": "no time was left"}
    assert not wild._known(cut, "a", tune=False)
    assert wild._known(cut | {"problem": "not installed: x"}, "a", tune=False)
