"""Tasks: what is made can be learned, and losses and scores mean what they say."""

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.data.options import DataOptions
from stepscope.workloads.data.samples import copy_to_device
from stepscope.workloads.data.tasks import Task, UserTask, dice, logits, make_task
from stepscope.workloads.models.build import UserInputs

PICTURES = {"size": 16, "classes": 10}
SHAPES = {"size": 24, "classes": 3}
TEXTS = {"length": 32, "classes": 3, "vocabulary": 32}
TOKENS = {"length": 16, "vocabulary": 64}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def workload(task: str) -> Workload:
    return Workload("tiny", "", task, "")


def task_of(
    name: str, shape: dict[str, int], given: UserInputs | None = None, **options: Any
) -> Task:
    asked = {"samples": 640, "test_samples": 100, **options}
    return make_task(replace(workload(name), **shape), DataOptions(**asked), given)


def conv(before: int, after: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 24)
        self.lstm = nn.LSTM(24, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 3)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(codes))[0].amax(1))


def scored(model: nn.Module, task: Task) -> tuple[float, float]:
    """Loss and mean score on the test split."""
    inputs, targets = copy_to_device(task.test, "cpu")
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
        total, count = task.score(outputs, targets)
    model.train()
    return task.loss(outputs, targets).item(), total.item() / count


def trained(model: nn.Module, task: Task, steps: int, lr: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    left = steps
    while left:
        for inputs, targets in DataLoader(task.train, batch_size=16, shuffle=True):
            loss = task.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            left -= 1
            if not left:
                return


def pictures_net() -> nn.Module:
    pool = nn.AdaptiveAvgPool2d(4)
    return nn.Sequential(
        conv(3, 16), conv(16, 32, 2), conv(32, 32, 2), pool, nn.Flatten(), nn.Linear(512, 10)
    )


def test_a_small_network_learns_the_images_and_not_at_once() -> None:
    task, model = task_of("images", PICTURES), pictures_net()
    start, at_first = scored(model, task)
    trained(model, task, 10, 3e-3)
    _, early = scored(model, task)
    trained(model, task, 60, 3e-3)
    loss, score = scored(model, task)
    assert at_first < 0.3
    assert early < 0.85
    assert score > 0.75
    assert loss < start / 2


def test_dice_rises_on_shapes_never_seen() -> None:
    task = task_of("segmentation", SHAPES)
    model = nn.Sequential(conv(3, 16), conv(16, 16), conv(16, 16), nn.Conv2d(16, 3, 1))
    start, at_first = scored(model, task)
    trained(model, task, 50, 1e-2)
    loss, score = scored(model, task)
    assert at_first < 0.4
    assert score > 0.6
    assert loss < start / 2


def test_an_lstm_learns_the_order_of_letters() -> None:
    task, model = task_of("characters", TEXTS), Recurrent()
    _, at_first = scored(model, task)
    trained(model, task, 110, 1e-2)
    _, score = scored(model, task)
    assert at_first < 0.55
    assert score > 0.75


def test_how_often_letters_come_does_not_tell_the_classes() -> None:
    inputs, targets = copy_to_device(task_of("characters", TEXTS).train, "cpu")
    counts = torch.stack([nn.functional.one_hot(c, 32).sum(0) for c in inputs]).double()
    means = torch.stack([counts[targets == label].mean(0) for label in range(3)])
    assert (means.max(0).values - means.min(0).values).max() < 0.5


def test_language_gets_below_what_guessing_costs() -> None:
    task = task_of("language", TOKENS)
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
    trained(model, task, 60, 3e-2)
    loss, score = scored(model, task)
    assert loss < 0.6 * math.log(64)
    assert score > 0.35


@pytest.mark.parametrize(
    ("name", "shape"),
    [("images", PICTURES), ("segmentation", SHAPES), ("characters", TEXTS), ("language", TOKENS)],
)
def test_no_test_sample_is_a_training_sample(name: str, shape: dict[str, int]) -> None:
    task = task_of(name, shape)
    seen = {item[0].numpy().tobytes() for item in task.train}
    assert not seen & {item[0].numpy().tobytes() for item in task.test}


def test_names_and_shapes_are_those_of_the_contract() -> None:
    image, label = task_of("images", {"size": 40, "classes": 1000}).train[0]
    assert (image.shape, image.dtype) == ((3, 40, 40), torch.float32)
    assert (label.shape, label.dtype) == ((), torch.int64)
    segmentation = task_of("segmentation", SHAPES)
    image, mask = segmentation.train[0]
    assert (image.shape, mask.shape, mask.dtype) == ((3, 24, 24), (24, 24), torch.int64)
    tokens, following = task_of("language", TOKENS).train[0]
    assert (tokens.shape, tokens.dtype) == ((16,), torch.int64)
    assert tokens[1:].equal(following[:-1])
    assert segmentation.score_name == "dice"
    assert task_of("language", TOKENS).score_name == "token_accuracy"
    assert task_of("characters", TEXTS).score_name == "accuracy"


def as_logits(classes: Tensor, number: int) -> Tensor:
    return nn.functional.one_hot(classes, number).movedim(-1, 1).float()


def test_dice_is_the_mean_over_classes_of_each_sample() -> None:
    there = torch.tensor([[[0, 0, 1, 1]], [[0, 0, 0, 0]]])
    found = torch.tensor([[[0, 1, 1, 1]], [[0, 0, 0, 0]]])
    first = (2 * 1 / (1 + 2) + 2 * 2 / (3 + 2)) / 2  # class 2 is in neither
    assert dice(as_logits(found, 3), there).tolist() == pytest.approx([first, 1.0])
    wrong = torch.full_like(there, 2)
    assert dice(as_logits(wrong, 3), there).tolist() == [0.0, 0.0]


def test_scores_add_up_over_batches() -> None:
    task = task_of("language", TOKENS)
    targets = torch.randint(0, 64, (4, 16))
    outputs = torch.randn(4, 16, 64)
    outputs[:2].scatter_(2, targets[:2, :, None], 100.0)
    whole, count = task.score(outputs, targets)
    parts = [task.score(outputs[i : i + 2], targets[i : i + 2]) for i in (0, 2)]
    assert count == sum(part[1] for part in parts) == 64
    assert whole == parts[0][0] + parts[1][0]
    assert parts[0][0] == 32


def test_logits_are_found_in_what_libraries_return() -> None:
    tensor, other = torch.ones(2, 3), torch.zeros(2)
    assert logits((tensor, other)) is tensor
    assert logits({"out": tensor, "aux": other}) is tensor
    assert logits({"hidden": tensor}) is tensor
    assert logits(SimpleNamespace(loss=None, logits=tensor)) is tensor


def test_fixes_see_that_samples_never_change() -> None:
    given = UserInputs(lambda batch: {"x": torch.randn(batch, 4)}, None)
    costly = {"decode_ms": 1, "latency_ms": 1, "resize": 20, "disk_mb_per_s": 50}
    for task in (
        task_of("images", PICTURES),
        task_of("images", PICTURES, samples=8, test_samples=1, **costly),
        task_of("segmentation", SHAPES),
        task_of("characters", TEXTS),
        task_of("language", TOKENS),
        task_of("user", {}, given),
    ):
        seen = dataset_traits(task.train)
        assert (seen.varies(), seen.handle, seen.sums, seen.cuda) == (None, None, None, None)


class TestGiven:
    def test_its_own_loss_is_used(self) -> None:
        given = UserInputs(lambda batch: torch.randn(batch, 4), lambda outputs: outputs.abs().sum())
        task = task_of("user", {}, given)
        assert task.loss(torch.full((2, 3), -1.0), torch.zeros(2)) == 6

    def test_without_one_classes_are_learned_or_outputs_made_small(self) -> None:
        task = UserTask(None, None, None)  # type: ignore[arg-type]
        targets = torch.tensor([7, 11])
        outputs = torch.randn(2, 5)
        expected = nn.functional.cross_entropy(outputs, torch.tensor([2, 1]))
        assert task.loss(outputs, targets).equal(expected)
        assert task.loss(torch.full((2, 3, 3), 2.0), targets) == 4
        assert task.loss(torch.full((2,), 3.0), targets) == 9
        own = SimpleNamespace(loss=torch.tensor(5.0), logits=outputs)
        assert task.loss(own, targets) == 5

    def test_nothing_is_scored(self) -> None:
        task = task_of("user", {}, UserInputs(lambda batch: torch.zeros(batch, 2), None))
        assert task.score_name is None
        assert task.score(torch.zeros(2, 2), torch.zeros(2))[1] == 0

    def test_tuples_and_dictionaries_are_collated(self) -> None:
        def inputs(batch: int) -> Any:
            return {"a": torch.randn(batch, 2), "b": [torch.randn(batch), torch.randn(batch, 3)]}

        task = task_of("user", {}, UserInputs(inputs, None), samples=70)
        batch, targets = next(iter(DataLoader(task.train, batch_size=8)))
        assert batch["a"].shape == (8, 2)
        assert [part.shape for part in batch["b"]] == [(8,), (8, 3)]
        assert targets.shape == (8,)
        whole, _ = copy_to_device(task.train, "cpu")
        assert whole["b"][1].shape == (70, 3)
        assert not whole["a"][:2].equal(copy_to_device(task.test, "cpu")[0]["a"][:2])

    def test_asking_for_inputs_leaves_the_random_numbers_of_the_program(self) -> None:
        given = UserInputs(lambda batch: torch.randn(batch, 2), None)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first = task_of("user", {}, given).train[3][0]
        assert torch.rand(3).equal(expected)
        assert task_of("user", {}, given).train[3][0].equal(first)

    @pytest.mark.parametrize("wrong", [torch.zeros(3, 2), torch.zeros(()), 7, (None,)])
    def test_inputs_that_are_no_batch_are_refused(self, wrong: Any) -> None:
        with pytest.raises(UsageError, match="tensors with the batch first"):
            task_of("user", {}, UserInputs(lambda batch: wrong, None))

    def test_a_model_without_inputs_is_refused(self) -> None:
        with pytest.raises(UsageError, match="returned no inputs"):
            task_of("user", {}, None)


@pytest.mark.parametrize(
    ("name", "shape", "options", "said"),
    [
        ("language", TOKENS, {"data": "cifar10"}, "--data synthetic"),
        ("user", {}, {"data": "images"}, "--data synthetic"),
        ("characters", TEXTS, {"resize": 64}, "there are no images here"),
        ("images", PICTURES, {"data": "cifar10", "resize": 64}, "stored at 32 pixels"),
        ("images", PICTURES, {"data": "images"}, "images:FOLDER"),
        ("characters", TEXTS, {"data": "characters"}, "characters:FILE"),
        ("images", {"classes": 10}, {}, "--size"),
        ("segmentation", {"size": 8, "classes": 1}, {}, "2 or more"),
        ("characters", {"length": 2, "classes": 3, "vocabulary": 32}, {}, "--length"),
        ("language", {"length": 4, "vocabulary": 1}, {}, "2 tokens"),
        ("user", {}, {"disk_mb_per_s": 1.0}, "its own inputs"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    name: str, shape: dict[str, int], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as told:
        task_of(name, shape, UserInputs(lambda batch: torch.zeros(batch), None), **options)
    assert "\n" not in str(told.value)
