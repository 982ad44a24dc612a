"""Transforms that the GPU could do keep the processor from delivering in time."""

import re
from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._loading import evidence, loading, places
from stepscope.diagnose.rules._workers import cheaper
from stepscope.record.finding import Evidence, Finding

_ON_TENSORS = re.compile(
    r"(?i)resize|normali[sz]e|flip|crop|rotat|affine|perspective|jitter|blur|erasing|gr[ae]yscale|"
    r"noise|cutmix|mixup|color|solarize|equalize|posterize|sharpness|contrast|brightness|elastic|"
    r"augment|interpolate|convertimagedtype|todtype|spectrogram"
)
_MUCH = 0.3


def _gpu_augmentation(case: Case) -> Iterable[Finding]:
    """Where not even a worker for each core hides loading, and tensor work is much of it."""
    how = loading(case)
    if how is None or case.device != "cuda" or how.share < LEAST or not how.limits:
        return
    parts = [p for p in how.parts if p["what"] == "transform" and _ON_TENSORS.search(p["name"])]
    share = float(sum(part["share"] for part in parts))
    if share < _MUCH or how.batch_ms / how.cores <= how.compute_ms:
        return
    names = " and ".join(part["name"] for part in parts[:2])
    yield Finding(
        id=GPU_AUGMENTATION.id,
        title=f"{share:.0%} of loading could be done on the GPU",
        why=(
            f"Even with a worker for each of {how.cores} cores a batch comes every"
            f" {in_ms(how.batch_ms / how.cores)} ms, while the rest of the step takes"
            f" {in_ms(how.compute_ms)} ms. {names} work on tensors, a batch at a time on the GPU."
        ),
        advice=(
            f"Leave decoding and cropping to the dataset; apply {names} to the whole batch after"
            " it is on the device (torchvision.transforms.v2 or kornia take CUDA batches)."
        ),
        share=how.share * share,
        evidence=(
            *evidence(how),
            *(Evidence(p["name"], 100 * p["share"], "% of making a batch") for p in parts[:3]),
        ),
        where=places(how, *parts[:2]),
        predicted=cheaper(
            case, how, 1 - share, f"{names} leave the processor; the GPU does them in no time"
        ),
        effort="some lines",
        kind="numeric",
        confidence="medium",
    )


GPU_AUGMENTATION = Rule(
    id="data.gpu_augmentation",
    cause="Transforms that the GPU could do keep the processor from delivering in time.",
    find=_gpu_augmentation,
)
