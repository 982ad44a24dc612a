"""The programs whose windows benchmarks/replay.py replays, by device."""

from pathlib import Path

from _predictions_programs import PROGRAMS as PREDICTED

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_TRAIN = ["-m", "stepscope.workloads.train"]


def _train(model: str, steps: int, *more: str) -> list[str]:
    return [*_TRAIN, "--model", model, "--steps", str(steps), *more]


def _example(name: str, *more: str) -> list[str]:
    return [str(EXAMPLES / name), *more]


PROGRAMS: dict[str, dict[str, list[str]]] = {
    "cpu": {
        "mlp": _train("mlp", 300),
        "mlp, 1 worker": _train("mlp", 300, "--workers", "1"),
        "mlp, 2 workers": _train("mlp", 300, "--workers", "2"),
        "mlp, slow samples": _train("mlp", 150, "--decode-ms", "0.2"),
        "mlp, slow samples, 1 worker": _train("mlp", 150, "--decode-ms", "0.2", "--workers", "1"),
        "mlp, tiny batches": _train("mlp", 800, "--batch", "4"),
        "cnn": _train("simple_cnn", 150, "--batch", "16"),
        "lstm": _train("lstm", 100, "--batch", "4", "--length", "32"),
        "gpt": _train("gpt:tiny", 100, "--batch", "2", "--length", "64"),
        "resnet18": _train("resnet18", 60, "--batch", "4"),
        "lightning cnn": ["--steps", "60", *_example("lightning_cnn.py")],
    },
    "cuda": {name: list(one.words) for name, one in PREDICTED["cuda"].items()}
    | {
        "lightning cnn": _example("lightning_cnn.py"),
        "hf classifier": _example("hf_classifier.py"),
    },
}
"""Arguments of `stepscope run`; built-in ones get `--device` too."""


def arguments(name: str, device: str) -> list[str]:
    """What follows `stepscope run`'s own options."""
    words = PROGRAMS[device][name]
    return [*words, "--device", device] if words[:2] == _TRAIN else words
