"""Advice under a trainer of Hugging Face names its settings."""

import pytest
from diagnosing import finding

from stepscope.diagnose.source_edits import with_trainer_settings
from stepscope.record.finding import FixRef, Place

HERE = Place("train.py", 46)
TRAINER = {("train.py", 46): "transformers"}
PASS = "Pass num_workers=5 to the DataLoader: batches are then made while the step computes."


def advised(advice, fix=None, through=TRAINER, device="cuda"):
    found = finding("data.a", 50, fix=fix, where=(HERE,), advice=advice, edit={"line": 46})
    return with_trainer_settings(found, through, device)


def test_arguments_of_the_loader_are_settings():
    found = advised(PASS, FixRef("workers", "5"))
    assert found.advice == (
        "Pass dataloader_num_workers=5 to TrainingArguments: "
        "batches are then made while the step computes."
    )
    assert found.edit is None


def test_advice_without_a_fix_is_said_so_too():
    found = advised("Pass prefetch_factor=4 to the DataLoader, if there is memory for it.")
    assert found.advice.startswith("Pass dataloader_prefetch_factor=4 to TrainingArguments, if")


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
def test_precision_and_compiling_are_settings(fix, said):
    assert advised("Do it in the loop.", fix).advice == said


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
    found = advised("Do it in the loop.", fix, through, device)
    assert found.advice == "Do it in the loop."
    assert found.edit == {"line": 46}
