"""Where the whole run's time went, and what a program's set-up was found to be."""

import pytest
from harness import Outcome, programs


@programs()
def test_the_account_adds_up_to_the_run(outcome: Outcome) -> None:
    run, account = outcome.document["run"], outcome.document["account_s"]
    wall_s = (run["ended_ns"] - run["started_ns"]) / 1e9
    assert all(seconds >= 0 for seconds in account.values())
    assert sum(account.values()) == pytest.approx(wall_s, rel=0.02)


@programs()
def test_nothing_is_reported_as_a_problem(outcome: Outcome) -> None:
    assert outcome.document["problems"] == []


@programs("train_evaluate_train", "lightning_automatic")
def test_evaluation_is_booked_apart_from_steps(outcome: Outcome) -> None:
    assert outcome.document["account_s"]["evaluation"] > 0


@programs("save_and_load")
def test_saving_is_booked_apart_from_steps(outcome: Outcome) -> None:
    assert outcome.document["account_s"]["checkpoint"] > 0


@programs(where=lambda shape: "compile" in shape.expects)
def test_compilation_is_booked_apart_from_steps(outcome: Outcome) -> None:
    assert outcome.document["account_s"]["compile"] > 0


@programs("workers_fork", "workers_spawn")
def test_a_loader_is_found_with_its_workers(outcome: Outcome) -> None:
    (loader,) = outcome.document["loaders"]
    assert loader["start_method"] == outcome.shape.name.removeprefix("workers_")
    assert loader["num_workers"] >= 1
    assert loader["batch_size"] == 8


@programs("ddp")
def test_a_wrapped_model_is_found_as_such(outcome: Outcome) -> None:
    (model,) = outcome.document["config"]["models"]
    assert model["ddp"] is True
