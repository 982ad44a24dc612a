"""The list of fixes: what each must tell of itself, and how it is asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.cli.fixes import fixes
from stepscope.fixes.base import Fix, FixKind
from stepscope.fixes.registry import FIX_NAMES, all_fixes, fix_named, fix_variables, parse_fixes
from stepscope.record.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("data", "waiting", "arithmetic", "launch", "memory", "batch")
each = pytest.mark.parametrize("one", all_fixes(), ids=FIX_NAMES)


def value_of(one: Fix) -> object:
    """A value such as the fix suggests."""
    return one.parse(one.suggested[0]) if one.suggested else one.parse(None)


@each
def test_a_fix_says_what_it_is(one: Fix) -> None:
    assert one.name in FIX_NAMES
    assert one.group in GROUPS
    assert one.kind in FixKind
    for text in (one.title, one.effort, one.missing):
        assert text.strip() == text != ""
        assert "\n" not in text
        assert not text.endswith(".")
    assert len(one.title) <= 90
    assert set(one.bad_with) <= set(FIX_NAMES) - {one.name}


@each
def test_a_fix_takes_the_values_it_suggests_and_no_others(one: Fix) -> None:
    for text in one.suggested:
        one.parse(text)
    assert bool(one.suggested) <= bool(one.values)
    for text in ("nonsense", "-1", "0x10", "", "1e3"):
        with pytest.raises(UsageError, match=f"--fix {one.name}"):
            one.parse(text)


@each
def test_a_fix_has_an_edit_in_words(one: Fix) -> None:
    for line in ("", "    x = f(y)", "loader = DataLoader(data, batch_size=4)", "for x in y:"):
        edit = one.edit(value_of(one), line)
        assert edit.words.strip() == edit.words != ""
        assert not edit.words.endswith(".")
        for text in (*edit.before, edit.line or ""):
            assert "\n" not in text


@each
@pytest.mark.parametrize("line", ["DataLoader('\ud800')", "DataLoader(\0)", "DataLoader(("])
def test_a_fix_edits_no_line_that_is_not_code(one: Fix, line: str) -> None:
    assert not one.edit(value_of(one), line).line


@each
def test_a_fix_does_not_explain_what_it_did_not_do(one: Fix) -> None:
    for error in (ValueError("no such thing"), KeyboardInterrupt(), KeyError("x")):
        assert one.explain(error, "x = f(y)") is None


@each
def test_the_environment_it_asks_for_is_text(one: Fix) -> None:
    for name, text in fix_variables([(one, value_of(one))]).items():
        assert isinstance(name, str)
        assert isinstance(text, str)


def test_the_names_are_those_of_the_files() -> None:
    assert len(set(FIX_NAMES)) == len(FIX_NAMES) == 24
    assert [one.name for one in all_fixes()] == list(FIX_NAMES)


def test_listing_fixes_does_not_import_torch() -> None:
    script = (
        "import sys\n"
        "from stepscope.fixes.registry import all_fixes\n"
        "for one in all_fixes():\n"
        "    value = one.parse(one.suggested[0]) if one.suggested else one.parse(None)\n"
        "    one.edit(value, 'x = DataLoader(data)'), one.environment(value)\n"
        "    one.explain(ValueError('x'), 'x')\n"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_fixes_take_hold_in_their_own_order_whatever_the_order_asked() -> None:
    asked = ["fused_optimizer", "amp=bf16", "drop_last", "tf32"]
    for texts in (asked, asked[::-1]):
        assert [one.name for one, _ in parse_fixes(texts)] == [
            "drop_last",
            "tf32",
            "amp",
            "fused_optimizer",
        ]


def test_values_are_parsed() -> None:
    assert [value for _, value in parse_fixes(["workers=3", "drop_last"])] == [None, 3]
    assert parse_fixes([]) == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["quicker"], "no fix named quicker: `stepscope fixes` lists them"),
        (["worker=2"], "no fix named worker: did you mean workers?"),
        (["Pin"], "no fix named Pin: did you mean pin?"),
        ([""], "no fix named"),
        (["base"], "no fix named base"),
        (["../drop_last"], "no fix named ../drop_last"),
        (["drop_last=1"], "--fix drop_last takes no value"),
        (["amp=bf17"], "--fix amp=bf17: use bf16, fp16"),
        (["tf32="], "--fix tf32=: use on, off"),
        (["workers=many"], "--fix workers=many"),
        (["batch=0"], "--fix batch"),
        (["batch"], "--fix batch"),
        (["pin", "pin"], "--fix pin is given twice"),
        (["tf32=on", "tf32=off"], "--fix tf32 is given twice"),
        (["foreach", "fused_optimizer"], "cannot be combined"),
        (["fused_optimizer", "foreach"], "cannot be combined"),
        (["compile", "checkpointing"], "cannot be combined"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_asked_for_is_refused(asked: list[str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_fixes(asked)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pairs_declared_bad_on_one_side_are_refused_in_any_order() -> None:
    for one in all_fixes():
        for other in one.bad_with:
            asked = [
                f"{name}={s[0]}" if (s := fix_named(name).suggested) else name
                for name in (one.name, other)
            ]
            for texts in (asked, asked[::-1]):
                with pytest.raises(UsageError, match="cannot be combined"):
                    parse_fixes(texts)


# `stepscope fixes`


def test_fixes_lists_all_of_them_by_group() -> None:
    shown = CliRunner().invoke(fixes, [])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    for one in all_fixes():
        named = [line for line in lines if line.split()[:1] == [one.name + "=…" * bool(one.values)]]
        assert len(named) == 1, one.name
        assert str(one.kind) in named[0]
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("Next:") for line in lines[-3:])


@each
def test_fixes_tells_all_about_one(one: Fix) -> None:
    shown = CliRunner().invoke(fixes, [one.name])
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    for part in (one.title, f"{one.kind}:", one.effort, *one.values, *one.bad_with):
        assert " ".join(part.split()) in text
    assert f"--fix {one.name}" in text


def test_fixes_as_json() -> None:
    documents = json.loads(CliRunner().invoke(fixes, ["--json"]).stdout)
    assert [document["name"] for document in documents] == list(FIX_NAMES)
    for document in documents:
        assert set(document) == {
            *("name", "group", "title", "kind", "effort", "needs", "values", "suggested"),
            *("bad_with", "edit"),
        }
    one = json.loads(CliRunner().invoke(fixes, ["--json", "tf32"]).stdout)
    assert one == next(document for document in documents if document["name"] == "tf32")


def test_an_unknown_name_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "stepscope.cli.main", "fixes", "chanels_last"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "stepscope: no fix named chanels_last: did you mean channels_last?\n"


def test_fixes_that_need_a_gpu_are_those_that_found_nothing_to_do_without_one() -> None:
    results = ROOT / "benchmarks" / "results" / "fix-compatibility-cpu.json"
    idle = set(FIX_NAMES)
    for program in json.loads(results.read_text())["programs"].values():
        held = {name for name, cell in program["cells"].items() if cell[1] and "+" not in name}
        idle -= {name.split("=")[0] for name in held}
    assert {one.name for one in all_fixes() if one.needs == "cuda"} == idle
