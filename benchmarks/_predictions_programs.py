"""The programs of benchmarks/predictions.py and the fixes that each is run with, by device."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_TRAIN = ("-m", "stepscope.workloads.train")


@dataclass(frozen=True, slots=True)
class Program:
    """`words` follow `stepscope run`'s own options; `fixes` are as `--fix` takes them."""

    words: tuple[str, ...]
    fixes: tuple[str, ...]


def _train(model: str, steps: int, *more: str, fixes: str) -> Program:
    words = (*_TRAIN, "--model", model, "--steps", str(steps), *more, "--test-samples", "32")
    return Program(words, tuple(fixes.split()))


def _example(name: str, *more: str, fixes: str) -> Program:
    return Program((str(EXAMPLES / name), *more), tuple(fixes.split()))


_CPU = {
    "slow": Program(
        ("-m", "stepscope.workloads.slow", "--steps", "100"),
        ("workers=1", "workers=2", "fused_optimizer", "accumulate=2"),
    ),
    "cnn, decoding": _train(
        "simple_cnn", 100, "--batch", "16", "--samples", "1600", "--decode-ms", "1.5",
        fixes="workers=1 workers=2 fused_optimizer",
    ),
    "mlp, decoding": _train(
        "mlp", 200, "--samples", "12800", "--decode-ms", "0.2",
        fixes="workers=1 fused_optimizer foreach accumulate=2",
    ),
    "mlp, slow storage": _train(
        "mlp", 60, "--samples", "3840", "--latency-ms", "1", fixes="workers=1 workers=2 workers=4"
    ),
    "mlp, few samples": _train(
        "mlp", 200, "--samples", "640", "--decode-ms", "0.5", fixes="cache workers=1"
    ),
    "mlp, one worker": _train(
        "mlp", 150, "--samples", "9600", "--decode-ms", "0.5", "--workers", "1",
        fixes="workers=2 fused_optimizer",
    ),
    "lstm": _train(
        "lstm", 100, "--batch", "4", "--length", "32", "--samples", "400",
        fixes="fused_optimizer foreach accumulate=4",
    ),
    "gpt": _train(
        "gpt:tiny", 80, "--batch", "2", "--length", "64", "--samples", "160",
        fixes="fused_optimizer accumulate=4 checkpointing",
    ),
    "characters": _train(
        "transformer:characters", 60, "--batch", "2", "--length", "64", "--samples", "120",
        fixes="fused_optimizer sdpa",
    ),
}  # fmt: skip
_CUDA = {
    "slow": _example(
        "slow.py", "--steps", "120",
        fixes="workers=4 workers=12 pin nosync",
    ),
    "resnet18": _example(
        "resnet18.py", "--steps", "300",
        fixes="amp=bf16 channels_last fused_optimizer cuda_graph cudnn_benchmark",
    ),
    "resnet50": _example(
        "resnet50.py", "--steps", "120",
        fixes="amp=bf16 channels_last fused_optimizer cuda_graph",
    ),
    "decoder": _example("decoder.py", "--steps", "120", fixes="fused_optimizer pin cuda_graph"),
    "cnn, decoding": _train(
        "simple_cnn", 120, "--samples", "7680", "--decode-ms", "0.2",
        fixes="workers=4 workers=8 pin",
    ),
    "lstm": _train("lstm", 200, "--samples", "12800", fixes="fused_optimizer tf32 accumulate=4"),
    "gpt": _train(
        "gpt:small", 120, "--samples", "1920", fixes="amp=bf16 tf32 fused_optimizer cuda_graph"
    ),
    "unet": _train(
        "unet", 100, "--samples", "1600", fixes="amp=bf16 channels_last fused_optimizer"
    ),
    "characters": _train(
        "transformer:characters", 200, "--samples", "12800", fixes="sdpa amp=bf16 fused_optimizer"
    ),
}  # fmt: skip
PROGRAMS = {"cpu": _CPU, "cuda": _CUDA}


def arguments(name: str, device: str) -> list[str]:
    """What follows `stepscope run`'s own options; built-in workloads are told the device."""
    words = PROGRAMS[device][name].words
    return [*words, "--device", device] if words[:2] == _TRAIN else list(words)


def half(device: str, program: str, fix: str) -> str:
    """Whether constants may be fitted on a pair, or errors are reported on it: by its names."""
    digest = hashlib.sha256(f"{device}/{program}/{fix}".encode()).digest()
    return ("fitting", "reporting")[digest[0] % 2]
