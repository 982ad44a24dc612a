"""Why a fix was not tried, in words."""

from collections.abc import Mapping
from typing import Any, Final

from stepscope.fixes.applicability import WhyNot

_WORDS: Final[Mapping[WhyNot, str]] = {
    WhyNot.NO_LOADER: "no DataLoader",
    WhyNot.NO_OPTIMIZER: "no optimizer",
    WhyNot.NOT_TRAINING: "not training",
    WhyNot.ALREADY_ON: "already on",
    WhyNot.HAS_WORKERS: "the loader has workers",
    WhyNot.NO_SYNCHRONIZE: "torch.cuda.synchronize is never called",
    WhyNot.NO_ITEM: "no .item() on a CUDA tensor",
    WhyNot.NO_CONVOLUTIONS: "no convolutions",
    WhyNot.NO_IMAGE_CONVOLUTIONS: "no 2d or 3d convolutions",
    WhyNot.NO_ATTENTION: "no attention layers",
    WhyNot.DETERMINISTIC: "deterministic algorithms requested",
    WhyNot.HALF_PRECISION: "the model is already in half precision",
    WhyNot.PROGRAM_COMPILES: "the program already calls torch.compile",
    WhyNot.SKIPPED: "--skip",
    WhyNot.NOTHING_FOUND: "no finding calls for it",
    WhyNot.SAVES_MEMORY_ONLY: "saves memory, not time",
    WhyNot.NO_OTHER_VALUE: "no other value to try",
}


def why_not_tried(rejected: Mapping[str, Any]) -> str:
    """Of a rejected fix of a tune's document; older documents hold the sentence itself."""
    if not rejected.get("reason"):
        return str(rejected["why"])
    reason, detail = WhyNot(rejected["reason"]), rejected.get("detail")
    match reason:
        case WhyNot.NEEDS_DEVICE:
            return f"needs a {str(detail).upper()} device"
        case WhyNot.LITTLE_WAIT:
            return f"steps hardly wait for data ({float(detail or 0):.1%} of the time)"
        case WhyNot.SMALL_BATCHES:
            return f"batches are small ({float(detail or 0) / 1024:.1f} KiB)"
        case WhyNot.OWN_AUTOCAST:
            return f"the program already uses autocast ({detail})"
        case WhyNot.NOT_ALLOWED:
            does = "training" if detail == "semantic" else "rounding or random draws"
            return f"changes {does}: --allow {detail}"
        case WhyNot.REQUIRES:
            return f"no effect without {detail}"
        case _:
            return _WORDS[reason]
