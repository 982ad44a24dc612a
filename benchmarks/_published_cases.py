"""What is measured beside published figures: a command line each, and what was published."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One comparison."""

    title: str
    command: tuple[str, ...]
    """What follows `stepscope bench`."""
    published: str
    """The figure to stand beside, in words; empty where there is none."""
    shape: str = "variants"
    """How its table looks: variants, batches or study."""


_ALL = "amp=bf16,channels_last,compile=reduce-overhead"


def _case(title: str, command: str, published: str = "", shape: str = "variants") -> Case:
    return Case(title, tuple(command.split()), published, shape)


CASES = {
    "infer": _case(
        "ResNet-50, inference, batch 32: fp32 against all fixes",
        "resnet50 --mode infer --batch 32 --device cuda --rounds 3 --seconds 1.5"
        f" --fix tf32=off --fix none --fix {_ALL}",
        "3.9× throughput, 74% lower p50",
    ),
    "train": _case(
        "ResNet-50, training, batch 64: fp32 against all fixes",
        "resnet50 --mode train --batch 64 --device cuda --rounds 3 --seconds 1.5"
        f" --fix tf32=off --fix none --fix fused_optimizer,{_ALL}",
        "3.2× throughput",
    ),
    "sweep": _case(
        "ResNet-18 on 32 px images, training, batch 16 to 4096",
        "resnet18 --mode train --batch 16,32,64,128,256,512,1024,2048,4096 --device cuda"
        " --rounds 1 --seconds 1.5",
        shape="batches",
    ),
    "unet": _case(
        "U-Net, 500 samples and 100 unseen, batch 16: CPU against GPU",
        "unet --study cpu-gpu --batch 16 --samples 500 --test-samples 100 --epochs 2 --rounds 2",
        "20.65× GPU over CPU",
        "study",
    ),
    "lstm": _case(
        "LSTM, 2000 samples and 400 unseen, batch 64: CPU against GPU",
        "lstm --study cpu-gpu --batch 64 --samples 2000 --test-samples 400",
        "13.14× GPU over CPU",
        "study",
    ),
    "ladder": _case(
        "ResNet-18 fed by a slow loader: loader, AMP, batch, compile",
        "resnet18 --mode train --batch 32 --size 64 --device cuda --data synthetic --resize 256"
        " --samples 4096 --rounds 2 --seconds 2 --fix none --fix workers=8,pin"
        " --fix workers=8,pin,amp=bf16 --fix workers=8,pin,amp=bf16,batch=256"
        " --fix workers=8,pin,amp=bf16,batch=256,compile",
        "2.8× throughput",
    ),
    "memory": _case(
        "The three-convolution network at 224 px, training: fp32 and AMP",
        "simple_cnn --mode train --size 224 --batch 32,64,128,256 --device cuda --rounds 1"
        " --seconds 1.5 --fix none --fix amp=bf16",
        shape="batches",
    ),
}
