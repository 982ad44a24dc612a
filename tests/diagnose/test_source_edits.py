"""The user's own line, as it would be, or the trainer's settings."""

import pytest
from diagnosing import finding

from stepscope.diagnose.source_edits import (
    settings_advice,
    statement,
    with_edit,
    with_trainer_settings,
)
from stepscope.record.finding import FixRef, Place, Setting, SettingOwner, SourceEdit

LINES = {
    31: "    loader = DataLoader(images, batch_size=16)",
    32: "    torch.cuda.synchronize()",
    40: "    loader = DataLoader(",
    41: "        images,",
    42: "        batch_size=16,",
    43: "    )",
    50: "    loader = DataLoader(  # for training",
    51: "        images)",
    60: '    x = f("""a',
    61: '    b""")',
    70: "    for x, y in DataLoader(",
    71: "        images",
    72: "    ):",
    75: "\tout = model(x)",
    76: "    if model(x) > 0: print(x)",
    77: "    with torch.no_grad():",
    78: '    y = model("""',
    80: "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)",
}


def source(file, line):
    return LINES.get(line) if file == "train.py" else None


def edited(fix, *lines, device="cuda"):
    where = tuple(Place("train.py", line) for line in lines)
    return with_edit(finding("data.a", 50, fix=fix, where=where), source, device).edit


def test_the_line_is_changed_as_the_fix_says():
    edit = edited(FixRef("workers", "4"), 31)
    after = "    loader = DataLoader(images, batch_size=16, num_workers=4)"
    assert edit == SourceEdit("train.py", 31, LINES[31], (after,), edit.words)


def test_a_call_over_several_lines_is_changed_too():
    edit = edited(FixRef("workers", "4"), 40)
    assert edit.before == "    loader = DataLoader(images, batch_size=16)"
    assert edit.after == ("    loader = DataLoader(images, batch_size=16, num_workers=4)",)


def test_a_line_that_opens_a_block_is_a_statement():
    assert statement(source, "train.py", 70) == "    for x, y in DataLoader(images):"


@pytest.mark.parametrize("line", [50, 60])
def test_what_cannot_be_joined_safely_is_left_alone(line):
    assert statement(source, "train.py", line) == LINES[line]


def test_a_line_may_have_to_go():
    assert edited(FixRef("nosync"), 32).after == ()


def test_the_first_place_that_the_fix_can_change_is_taken():
    assert edited(FixRef("workers", "4"), 32, 31).line == 31


def test_lines_for_another_place_have_no_line():
    edit = edited(FixRef("tf32", "on"))
    assert edit.line is None
    assert edit.before is None
    assert any("set_float32_matmul_precision" in line for line in edit.after)


@pytest.mark.parametrize(
    "fix",
    [None, FixRef("sdpa"), FixRef("nonsense"), FixRef("workers", "-3")],
    ids=["no fix", "words only", "unknown", "bad value"],
)
def test_no_edit(fix):
    assert edited(fix, 31) is None


def test_what_lines_of_a_source_cannot_do_is_a_call():
    edit = edited(FixRef("cache", "4G"), 31)
    assert edit.line is None
    assert edit.after == ("import stepscope", 'stepscope.apply("cache=4G")')


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_names_the_device_the_program_runs_on(device):
    edit = edited(FixRef("amp", "bf16"), 75, device=device)
    context = f'\twith torch.autocast("{device}", dtype=torch.bfloat16):'
    assert edit.after == (context, "\t\tout = model(x)")


def test_a_condition_and_its_one_line_go_under_autocast_together():
    assert edited(FixRef("amp"), 76).after[1] == "        if model(x) > 0: print(x)"


@pytest.mark.parametrize("line", [77, 78])
def test_what_goes_on_over_lines_is_not_indented_by_half(line):
    edit = edited(FixRef("amp", "bf16"), line, device="cpu")
    assert edit.line is None
    assert edit.after == ('with torch.autocast("cpu", dtype=torch.bfloat16):',)


def test_an_optimizer_is_changed_where_it_is_made():
    made = (Place("train.py", 80),)
    slow = finding("launch.a", 50, fix=FixRef("fused_optimizer"), where=(Place("train.py", 31),))
    edit = with_edit(slow, source, "cuda", made).edit
    assert edit.line == 80
    assert edit.after == ("optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)",)


def test_no_edit_without_the_line():
    assert edited(FixRef("workers", "4"), 99) is None


HERE = Place("train.py", 46)
TRAINER = {("train.py", 46): "transformers"}
EDIT = SourceEdit("train.py", 46, "x", ("y",), "write y")
WORKERS = Setting(SettingOwner.LOADER, "num_workers", "5")
PINNED = Setting(SettingOwner.LOADER, "pin_memory", "True")


def advised(fix=None, settings=(), through=TRAINER, device="cuda"):
    more = {"advice": "Then measure.", "settings": settings, "edit": EDIT}
    found = finding("data.a", 50, fix=fix, where=(HERE,), **more)
    return with_trainer_settings(found, through, device)


def test_arguments_of_the_loader_come_before_the_advice():
    found = advised(settings=(WORKERS, PINNED), through={})
    said = "Pass num_workers=5 and pin_memory=True to DataLoader. Then measure."
    assert settings_advice(found) == said
    assert found.edit == EDIT


def test_under_a_trainer_arguments_of_the_loader_are_its_settings():
    found = advised(FixRef("workers", "5"), (WORKERS,))
    said = "Pass dataloader_num_workers=5 to TrainingArguments. Then measure."
    assert settings_advice(found) == said
    assert found.settings[0].owner is SettingOwner.TRAINER
    assert found.edit is None


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        (FixRef("amp", "bf16"), "Pass bf16=True to TrainingArguments."),
        (
            FixRef("compile", "reduce-overhead"),
            'Pass torch_compile=True and torch_compile_mode="reduce-overhead" to'
            " TrainingArguments.",
        ),
    ],
)
def test_under_a_trainer_precision_and_compiling_are_its_settings(fix, said):
    assert settings_advice(advised(fix)) == said


@pytest.mark.parametrize(
    ("fix", "through", "device"),
    [
        (FixRef("amp", "bf16"), TRAINER, "cpu"),
        (FixRef("amp", "bf16"), {}, "cuda"),
        (FixRef("amp", "bf16"), {("train.py", 46): "lightning"}, "cuda"),
        (FixRef("compile", "default,dynamic"), TRAINER, "cuda"),
        (FixRef("tf32", "on"), TRAINER, "cuda"),
        (None, TRAINER, "cuda"),
    ],
)
def test_all_else_stays_as_it_is(fix, through, device):
    found = advised(fix, (), through, device)
    assert settings_advice(found) == "Then measure."
    assert found.edit == EDIT
