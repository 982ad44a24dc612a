"""The training programs that observing is measured on. Each is an ordinary one of its kind, and
calls back when a step has ended; it ends once told that there were enough.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from _training import PLANS, Training, calibrated
from torch import nn
from torch.utils.data import DataLoader, Dataset

Each = Callable[[], bool]
"""Called when a step has ended; whether there were enough."""


class MissingError(Exception):
    """What a program needs is not here."""


class Program(Protocol):
    """A training program."""

    model: Any
    size: int
    """Of its model or batch, where that was calibrated; else 0."""

    def run(self, each: Each) -> None: ...


class Loop:
    """A loop that is written out, epoch after epoch."""

    def __init__(self, training: Training) -> None:
        self.model = training.model
        self.size = training.plan.size
        self._training = training

    def run(self, each: Each) -> None:
        while True:
            for x, y in self._training.loader:
                self._training.step(x, y)
                if each():
                    return


def _loop(ms: int) -> Callable[[str, int | None], Program]:
    def make(device: str, size: int | None) -> Program:
        return Loop(_training(ms, device, size))

    return make


def _training(ms: int, device: str, size: int | None) -> Training:
    plan = PLANS[device, ms]
    plan = calibrated(plan, device, ms) if size is None else plan.sized(size)
    return Training(plan, device)


def _compiled(device: str, size: int | None) -> Program:
    training = _training(7, device, size)
    plain = training.model
    training.model = torch.compile(plain)
    x, _ = next(iter(training.loader))
    try:
        training.model(x.to(device))  # no whole step: it would be counted
    except Exception as problem:  # as where there is no C++ compiler
        raise MissingError(f"torch.compile fails here: {type(problem).__name__}") from None
    return Loop(training)


def _graph(device: str, size: int | None) -> Program:
    if device != "cuda":
        raise MissingError("CUDA graphs need CUDA")
    training = _training(7, device, size)
    x, _ = next(iter(training.loader))
    training.model = torch.cuda.make_graphed_callables(training.model, (x.to(device),))
    return Loop(training)


class _Tokens(Dataset[Any]):  # type: ignore[misc]
    """Windows of a file of tokens that is mapped into memory."""

    def __init__(self, path: Path, length: int) -> None:
        self._tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self._length = length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> Any:
        at = index * self._length
        part = torch.from_numpy(self._tokens[at : at + self._length + 1].astype(np.int64))
        return part[:-1], part[1:]


class Decoder(nn.Module):  # type: ignore[misc]
    """A small language model."""

    def __init__(self, width: int, layers: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Any) -> Any:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.tokens(x) + self.places(places)
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


_DECODERS = {"cpu": (64, 2, 32, 4, 512), "cuda": (512, 6, 256, 32, 16_384)}


class MappedDecoder:
    """Trains a decoder on a mapped file, with clipping and AdamW."""

    def __init__(self, device: str, _: int | None) -> None:
        width, layers, length, self._batch, vocabulary = _DECODERS[device]
        torch.manual_seed(0)
        self.size = 0
        self._device = device
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "tokens.bin"
        random = np.random.default_rng(0)
        random.integers(0, vocabulary, 1 << 20, dtype=np.uint16).tofile(path)
        self.loader = DataLoader(
            _Tokens(path, length), batch_size=self._batch, shuffle=True, drop_last=True
        )
        self.model = Decoder(width, layers, length, vocabulary).to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._loss = nn.CrossEntropyLoss()

    def run(self, each: Each) -> None:
        while True:
            for tokens, targets in self.loader:
                tokens, targets = tokens.to(self._device), targets.to(self._device)
                logits = self.model(tokens)
                loss = self._loss(logits.flatten(0, 1), targets.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self._optimizer.step()
                self._optimizer.zero_grad(set_to_none=True)
                if each():
                    return


class LightningProgram:
    """Lightning's Trainer at its least."""

    def __init__(self, device: str, size: int | None) -> None:
        try:
            import lightning
        except ImportError:
            raise MissingError("lightning is not installed") from None
        training = _training(7, device, size)
        self.size = training.plan.size
        self._loader = training.loader
        self._lightning = lightning
        self._device = device

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = training.model

            def training_step(self, batch: Any, _: int) -> Any:
                x, y = batch
                return training.loss(self.net(x), y)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)

        self.model = Module()

    def run(self, each: Each) -> None:
        class Ends(self._lightning.Callback):  # type: ignore[misc,name-defined]
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                trainer.should_stop = each() or trainer.should_stop

        trainer = self._lightning.Trainer(
            accelerator="gpu" if self._device == "cuda" else "cpu",
            devices=1,
            max_epochs=-1,
            callbacks=[Ends()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(self.model, self._loader)


class TrainerProgram:
    """transformers' Trainer on a model of one's own."""

    def __init__(self, device: str, size: int | None) -> None:
        try:
            import accelerate  # type: ignore[import-untyped]  # noqa: F401
            import transformers
        except ImportError as problem:
            raise MissingError(f"{problem.name} is not installed") from None
        training = _training(7, device, size)
        self.size = training.plan.size
        self._transformers = transformers
        self._batch = training.plan.batch
        self._data = training.loader.dataset
        self._device = device

        class Model(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = training.model

            def forward(self, x: Any, labels: Any) -> dict[str, Any]:
                logits = self.net(x)
                return {"loss": training.loss(logits, labels), "logits": logits}

        self.model = Model()

    def run(self, each: Each) -> None:
        class Ends(self._transformers.TrainerCallback):  # type: ignore[misc,name-defined]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = each() or control.should_training_stop

        def together(samples: list[Any]) -> dict[str, Any]:
            return {
                "x": torch.stack([x for x, _ in samples]),
                "labels": torch.stack([y for _, y in samples]),
            }

        with tempfile.TemporaryDirectory() as folder:
            arguments = self._transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=self._batch,
                max_steps=10_000_000,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
                use_cpu=self._device == "cpu",
            )
            self._transformers.Trainer(
                model=self.model,
                args=arguments,
                train_dataset=self._data,
                data_collator=together,
                callbacks=[Ends()],
            ).train()


PROGRAMS: dict[str, Callable[[str, int | None], Program]] = {
    "mlp": _loop(1),
    "cnn": _loop(7),
    "wide cnn": _loop(40),
    "mapped decoder": MappedDecoder,
    "lightning": LightningProgram,
    "trainer": TrainerProgram,
    "compiled": _compiled,
    "cuda graph": _graph,
}
