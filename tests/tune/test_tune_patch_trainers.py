"""Under Hugging Face's Trainer fixes are written into its settings."""

import pytest
from patching import at, calls_apply, half, project

TRAINER = """
    import torch
    from transformers import Trainer, TrainingArguments

    def main():
        arguments = TrainingArguments(
            "out",
            max_steps=10,
            dataloader_num_workers=0,
        )
        trainer = Trainer(build(), arguments, train_dataset=data)
        trainer.train()
"""
LOADER = at(11)
MODEL = at(11, object="Bert")
HALF = half("bf16", "cuda")


def test_what_the_trainer_makes_its_loader_from_is_set(tmp_path):
    made = project(tmp_path, TRAINER, forward=11, through="transformers")
    patch = made.patch(
        "workers=4", "persistent", "batch=16", workers=LOADER, persistent=LOADER, batch=LOADER
    )
    after = made.patched(patch)
    assert "        dataloader_num_workers=4,\n" in after
    assert "        dataloader_persistent_workers=True,\n" in after
    assert "        per_device_train_batch_size=16,\n" in after
    words = {one.fix: (one.line, one.words) for one in patch.edits}
    assert words["workers"] == (5, "pass dataloader_num_workers=4 to TrainingArguments")
    assert words.keys() == {"workers", "persistent", "batch"}
    assert patch.by_hand == ()


@pytest.mark.parametrize(
    ("fix", "where", "expected"),
    [
        ("amp=bf16", HALF, "bf16=True,"),
        ("amp=fp16", half("fp16", "cuda"), "fp16=True,"),
        ("compile", MODEL, "torch_compile=True,"),
        ("compile=max-autotune", MODEL, 'torch_compile_mode="max-autotune",'),
    ],
)
def test_precision_and_compiling_are_the_trainers_too(tmp_path, fix, where, expected):
    made = project(tmp_path, TRAINER, forward=11, through="transformers")
    patch = made.patch(fix, **{fix.partition("=")[0]: where})
    after = made.patched(patch)
    assert f"        {expected}\n" in after
    assert "autocast" not in after
    assert patch.by_hand == ()


def test_half_precision_on_the_cpu_stays_autocast(tmp_path):
    made = project(tmp_path, TRAINER, forward=11, through="transformers")
    after = made.patched(made.patch("amp=bf16", amp=half("bf16", "cpu")))
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):\n        trainer.train()' in after


def test_settings_made_elsewhere_are_named_to_the_user(tmp_path):
    made = project(
        tmp_path,
        """
        import torch
        from transformers import HfArgumentParser, Trainer, TrainingArguments
        arguments = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
        trainer = Trainer(build(), arguments)
        trainer.train()
        """,
        forward=5,
        through="transformers",
    )
    patch = made.patch("workers=4", "amp=bf16", workers=at(5), amp=HALF)
    why = "train.py:5: set dataloader_num_workers=4 in the trainer's settings"
    assert why in calls_apply(patch)["workers"]
    assert "with torch.autocast" in made.patched(patch)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("other = TrainingArguments('more')", "made several times"),
        ("def of(given): return TrainingArguments(**given)", "made several times"),
    ],
)
def test_of_several_settings_none_is_guessed(tmp_path, more, why):
    text = TRAINER.replace("    def main", f"    {more}\n    def main")
    made = project(tmp_path, text, loader=12, through="transformers")
    assert why in calls_apply(made.patch("workers=4", workers=at(12)))["workers"]


def test_settings_passed_on_as_a_whole_are_left_alone(tmp_path):
    made = project(tmp_path, TRAINER.replace("max_steps=10", "**given"), loader=11, through="trl")
    patch = made.patch("workers=4", workers=LOADER)
    assert "set dataloader_num_workers=4" in calls_apply(patch)["workers"]


def test_persistent_workers_are_not_written_where_the_trainer_has_none(tmp_path):
    text = TRAINER.replace("            dataloader_num_workers=0,\n", "")
    made = project(tmp_path, text, loader=10, through="transformers")
    patch = made.patch("persistent", persistent=at(10))
    assert "no dataloader_num_workers is written there" in calls_apply(patch)["persistent"]


def test_a_fix_that_took_no_hold_is_not_written(tmp_path):
    made = project(tmp_path, TRAINER, forward=11, through="transformers")
    patch = made.patch("workers=4")
    assert patch.text is None
    assert patch.by_hand[0].fix == "workers"


@pytest.mark.parametrize("through", [None, "ultralytics"])
def test_loaders_that_other_trainers_make_get_a_call(tmp_path, through):
    made = project(tmp_path, TRAINER, loader=11, through=through)
    patch = made.patch("workers=4", workers=LOADER)
    assert "the call is not written there" in calls_apply(patch)["workers"]
