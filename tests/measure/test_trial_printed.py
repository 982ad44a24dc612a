"""Numbers in what a program prints, and which of them two runs of it can be asked to agree in."""

import pytest

from stepscope.measure.trial.printed import read_printed


def told(text: str) -> list[str]:
    return [number for numbers in read_printed(text).numbers.values() for number in numbers]


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("samples used 256", ["256"]),
        ("samples used 0 of 256", ["0", "256"]),
        ("correct: 231/256", ["231", "256"]),
        ("step=5 loss:0.53217", ["5", "0.53217"]),
        ("{'loss': 0.53217, 'epoch': 3}", ["0.53217", "3"]),
        ("accuracy 94.5312%", ["94.5312"]),
        ("seen 1,024 samples", ["1,024"]),
        ("lr 1.0000e-05, epoch 2", ["1.0000e-05", "2"]),
        ("same weights: True", ["True"]),
        ("model2 has 12 layers", ["12"]),
        ("delta -12345", ["-12345"]),
        ("0.6931471", ["0.6931471"]),
    ],
)
def test_counts_and_results_are_read(line: str, numbers: list[str]) -> None:
    assert told(line) == numbers


@pytest.mark.parametrize(
    "line",
    [
        "took 12 seconds",
        "elapsed: 12",
        "Epoch time 3",
        "total training time for the whole run: 3",
        "3s, 120ms, 14 min",
        "1200 samples/s",
        "1200 tokens per second",
        "35.2134 it/s",
        "throughput 1234",
        "peak memory 1234",
        "allocated 812 MB",
        "3.4127 GiB",
        "2.10x",
        "2026-11-18 11:37:22,123",
        "at 2026/11/18",
        "ETA 0:01:12",
        "saved to /tmp/run-17/3/model.pt",
        "<Net object at 0x7f3a52d01f10>",
        "commit 9fceb02d0ae5",
        "run 550e8400-e29b-41d4-a716-446655440000",
        "num_workers=4",
        "pid 4711",
        " 10%|#         | 10/100 [00:01<00:09,  9.80it/s]\r 20%|##        | 20/100",
        "3.1",  # a time without a word: two runs agree in it by chance
        "done 3.1",
        "12",
        "no numbers here",
        "x" * 2000 + " 17",
    ],
)
def test_what_depends_on_the_clock_or_the_place_is_passed_over(line: str) -> None:
    assert told(line) == []


def test_a_count_is_read_beside_a_time() -> None:
    assert told("epoch 3: 12.4 s, samples used 256") == ["3", "256"]
    assert told("2026-11-18 11:37:22,123 INFO samples used 256") == ["256"]
    assert told("time 3.2 loss 0.53217") == ["0.53217"]


def test_short_numbers_count_where_there_are_many_of_them() -> None:
    assert told("loss 0.1\nloss 0.2\nloss 0.3") == []
    assert len(told("".join(f"loss 0.{step}\n" for step in range(1, 9)))) == 8


def test_lines_of_a_form_keep_their_order_and_are_found_again() -> None:
    ours = read_printed("epoch 1: used 256\r\nwords\nepoch 2: used 256\n")
    theirs = read_printed("epoch 1: used 256\nepoch 2: used 0\n")
    place = ("epoch #: used #", 1)
    assert (ours.numbers[place], theirs.numbers[place]) == (("256", "256"), ("256", "0"))
    assert theirs.lines_apart(place, ours) == ("epoch 2: used 0", "epoch 2: used 256")
    assert ours.is_count(place)
    assert not read_printed("loss 0.53217").is_count(("loss #", 0))


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("a badger", "a badger"),
        ("epoch 3: a badger", "epoch #: a badger"),
        ("saved to /tmp/run-17/3/model.pt", "saved to @"),
        ("2026-11-18 11:37:22,123 INFO a badger", "@ INFO a badger"),
    ],
)
def test_words_are_read_without_numbers_and_places(line: str, form: str) -> None:
    assert read_printed(f"{line}\n{line}\n").words == {form: 2}


@pytest.mark.parametrize(
    "line",
    [
        "took 12 seconds",
        "half the memory",
        "done in 3.1 s",
        "|####    |",
        "12",
        "train.py:3: UserWarning: a badger\n  model(badger)",
        "10%\r20%",
    ],
)
def test_words_about_costs_and_warnings_are_passed_over(line: str) -> None:
    assert read_printed(line).words == {}
