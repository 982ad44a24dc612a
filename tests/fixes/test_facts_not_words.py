"""Sentences of fixes are for people: with random words in their place patches, the choice of the
proof and the batch search stay the same."""

import json
from dataclasses import replace
from string import Formatter

import msgspec
import pytest
import torch
from fixing import fixed
from patching import at, half, project
from random_words import RandomWords, declared, replace_all_words
from torch.utils.data import DataLoader, Dataset

from stepscope.batch.program import as_measurement
from stepscope.launch.child import Outcome
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.measure.trial.status import classify_trial
from stepscope.record import fix_words
from stepscope.record.fix import (
    MODEL,
    NO_TORCH,
    NOTHING_FOUND,
    OUT_OF_MEMORY,
    Applied,
    Broke,
    DataChange,
    FixKind,
    FixOutcome,
    FixState,
    NotApplied,
    Reason,
    SourceLine,
    Target,
    Trait,
    TraitKind,
    Variation,
    fix_outcomes,
)
from stepscope.record.trial import TrialStatus
from stepscope.tune.proof.effects import changes_draws, observed_kind

PROGRAM = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    model = nn.Linear(4, 2)
    loader = DataLoader(data)
    for x, y in loader:
        x = x.to(device)
        out = model(x)
        torch.cuda.synchronize()
        total += out.item()
"""
DRAWS = Variation(
    DataChange.DRAWS, because=Trait(TraitKind.USES, "rand", SourceLine("reorder.py", 3))
)
AUTOCAST, TF32_SETTING, LOADER_WORKERS = map(Target, ("autocast", "tf32_setting", "loader_workers"))
FIXED_BATCH_SIZE = Reason("fixed_batch_size")


@pytest.fixture(params=[None, 1, 2])
def words(request, monkeypatch):
    """The sentences as they are, then random ones; None stands for the former."""
    if request.param is None:
        return None
    some = RandomWords(request.param)
    replace_all_words(some, monkeypatch)
    return some


def test_a_patch_is_the_same(tmp_path, words):
    made = project(tmp_path, PROGRAM, forward=9)
    own = Applied(TF32_SETTING, overrides=SourceLine("train.py", 12))
    patch = made.patch(
        *("workers=2", "pin", "amp", "compile", "channels_last", "tf32", "nosync", "prefetch"),
        workers=at(6, varies=DRAWS),
        pin=[at(6), at(8)],
        amp=half("bf16", "cuda"),
        compile=at(9, object="Linear", of_torch_nn=True),
        channels_last=at(9, object="Linear"),
        tf32=own,
        nosync=at(10),
        prefetch=at(6),
    )
    assert [(edit.fix, edit.line) for edit in patch.edits] == [
        ("workers", 6),
        ("pin", 6),
        ("pin", 8),
        ("nosync", 10),
        ("amp", 9),
        ("channels_last", 9),
        ("prefetch", 1),
        ("tf32", 1),
        ("compile", 1),
    ]
    assert patch.by_hand == ()
    after = made.patched(patch)
    assert "loader = DataLoader(data, num_workers=2, pin_memory=True)" in after
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16):' in after
    assert "model = model.to(memory_format=torch.channels_last)" in after
    assert "reorder.py" not in after


def trial(*outcomes, status="ok"):
    status = TrialStatus(status)
    return Trial(TrialRequest(), 1, status, detail="order", fix="batch=8", fixes=outcomes)


def kept(one: Trial, words) -> Trial:
    """As it comes back from a journal, its sentences replaced there as well."""
    document = json.loads(msgspec.json.encode(one))
    if words is not None:
        document = words.inside(document, ("where", "reasons", "detail"))
    return msgspec.convert(document, Trial)


@pytest.mark.parametrize(
    ("data", "other"),
    [
        (DataChange.DRAWS, True),
        (DataChange.ORDER, True),
        (DataChange.SAMPLES, True),
        (DataChange.SHUFFLES, True),
        (DataChange.ROUNDING, False),
    ],
)
def test_the_choice_of_the_proof_is_the_same(words, data, other):
    because = Trait(TraitKind.USES, "sum", SourceLine("reorder/samples.py", 3))
    record = Applied(LOADER_WORKERS, varies=Variation(data, because=because))
    record = replace(record, kind=FixKind.NUMERIC)
    done = trial(FixOutcome("workers", 4, FixState.APPLIED, FixKind.NUMERIC, (record,)))
    again = kept(done, words)
    assert again.fixes == done.fixes
    assert changes_draws(again) == other
    assert observed_kind(again) == FixKind.NUMERIC


@pytest.mark.parametrize(
    ("reason", "status"),
    [(OUT_OF_MEMORY, "out_of_memory"), (FIXED_BATCH_SIZE, "broke")],
)
def test_the_batch_search_takes_a_failure_for_the_same(words, reason, status):
    outcome = FixOutcome("batch", 8, FixState.BROKE, broke=Broke(reason, value=8))
    shown = fix_words.outcome_json(outcome)
    if words is not None:
        shown = words.inside(shown, ("where", "reasons"))
    document = {"run": {"out_of_memory": None, "error": None}, "fixes": [shown]}
    ended = Outcome(1, None, False, 0, 1, 1)
    found = classify_trial(TrialRequest(fixes=("batch=8",)), ended, document, 0, "")
    assert found.status == status
    assert as_measurement(kept(trial(outcome, status=found.status), words), 8).status == status


def test_every_record_comes_back_from_json_as_it_was():
    place = SourceLine("train.py", 7)
    for target in declared(Target):
        record = Applied(target, "Net", place, 1, 2, count=3, total=4, varies=DRAWS, detail="x")
        assert Applied.from_json(json.loads(json.dumps(record.to_json()))) == record
        assert fix_words.sentence(record)
    for reason in declared(Reason):
        refused = NotApplied(reason, MODEL, "Net", place, 1, "x", DRAWS.because)
        assert NotApplied.from_json(json.loads(json.dumps(refused.to_json()))) == refused
    assert all(one.words for one in (*TraitKind, *DataChange))


class Drawn(Dataset):
    """Draws a sample anew each time."""

    def __getitem__(self, index):
        return torch.rand(2)

    def __len__(self):
        return 8


def test_what_a_fix_says_in_a_program_is_read_back_as_records(tmp_path, words):
    with fixed(tmp_path, "workers=1", "drop_last", "tf32") as run:
        next(iter(DataLoader(Drawn(), batch_size=4)))
    found = run.outcomes()
    (record,) = found["workers"].applied
    assert (record.target, record.before, record.after) == (LOADER_WORKERS, 0, 1)
    assert record.place.file.endswith("test_facts_not_words.py")
    assert record.varies.data == DataChange.DRAWS
    assert record.varies.because.code == "torch.rand"
    assert found["workers"].kind == FixKind.NUMERIC
    assert found["drop_last"].applied[0].place == record.place


def test_a_process_without_the_fix_reads_its_records_and_sentences():
    refused = NotApplied(Reason("no_moon", "no moon{at}"), place=SourceLine("train.py", 7))
    did = Applied(Target("tide", "{count} tides in {{x}}"), count=3)
    outcome = FixOutcome("tides", None, FixState.APPLIED, None, (did,), (refused,))
    read = FixOutcome.from_json(json.loads(json.dumps(fix_words.outcome_json(outcome))))
    assert read == outcome
    assert read.applied[0].target.words == ""
    assert fix_words.outcome_json(read) == fix_words.outcome_json(outcome)
    assert fix_words.reason_words(read) == ["no moon at train.py:7"]
    assert fix_words.sentence(read.applied[0]) == "3 tides in {x}"


def test_sentences_have_no_empty_fields():
    place = SourceLine("train.py", 7)
    for reason in declared(Reason):
        names = {name for _, name, _, _ in Formatter().parse(reason.words) if name}
        if names & {"detail", "size"}:  # of a fix that is not tried
            continue
        refused = NotApplied(reason, MODEL, "Net", place, 1, "x", DRAWS.because, DRAWS, error="y")
        assert "None" not in fix_words.sentence(refused)


def test_facts_of_older_runs_have_words_and_no_place():
    facts = [
        {"name": "workers", "state": "asked", "value": 4, "text": "no DataLoader"},
        {"name": "pin", "state": "asked", "value": None, "text": "no DataLoader"},
        {
            "name": "workers",
            "state": "applied",
            "text": "DataLoader at train.py:5: 0 → 4 workers",
            "kind": "exact",
        },
        {"name": "workers", "state": "broke", "text": "a worker was killed", "kind": None},
    ]
    workers, pin, compiled = fix_outcomes(facts, ["workers=4", "pin", "compile=default"])
    assert (workers.state, workers.kind) == (FixState.BROKE, FixKind.EXACT)
    assert workers.applied[0].place is None
    shown = fix_words.outcome_json(workers)
    assert shown["where"] == ["DataLoader at train.py:5: 0 → 4 workers"]
    assert shown["reasons"] == ["a worker was killed"]
    assert (pin.state, pin.reason) == (FixState.NOT_APPLICABLE, NOTHING_FOUND)
    assert (compiled.value, compiled.reason) == ("default", NO_TORCH)
    old = {key: shown[key] for key in ("name", "value", "state", "kind", "where", "reasons")}
    assert fix_words.outcome_json(FixOutcome.from_json(old))["where"] == shown["where"]
