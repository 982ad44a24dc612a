"""What fixes need to know about an observed program, and why a fix cannot help it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypedDict

from stepscope.analyze.replay.known import (
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    ProgramConfig,
    Switches,
)
from stepscope.record.fix import Reason
from stepscope.record.trial import Rejection
from stepscope.record.units import format_bytes

_DESCRIBED_MODELS: Final = 4  # at most: there may be more
_LITTLE_WAIT: Final = 0.01  # of a step: a smaller wait for data is not worth a fix
_BF16_SINCE: Final = 8.0  # compute capability
PRIOR_GAINS = {"batch": 1.1, "arithmetic": 1.05, "launch": 1.04, "data": 1.03, "waiting": 1.02}
"""Typical gains of fixes by group, used without a prediction."""
ALREADY_ON = Reason("already_on", "already on")
NOT_TRAINING = Reason("not_training", "no training")
COMPILED = Reason("program_compiles", "the program compiles the model itself")
LITTLE_WAIT = Reason("little_wait", "steps hardly wait for data ({detail:.1%})")


class ProgramPart(StrEnum):
    """The part of a program a fix works on and needs."""

    LOADER = "loader"
    OPTIMIZER = "optimizer"


class FixProposal(TypedDict):
    """A fix that a finding names."""

    name: str
    value: str | None


class FindingFacts(TypedDict):
    """The parts of a finding that fixes use."""

    id: str
    kind: str
    fix: FixProposal | None
    also: Sequence[FixProposal]


@dataclass(frozen=True, slots=True)
class ObservedProgram:
    """A run's document with its findings."""

    document: Mapping[str, Any]

    @property
    def device(self) -> str:
        """cuda or cpu."""
        run = self.document.get("run") or {}
        return "cuda" if self.document.get("gpu") or run.get("device") == "cuda" else "cpu"

    @property
    def loaders(self) -> Sequence[LoaderFacts]:
        """Those the program made."""
        return self.document.get("loaders") or ()

    @property
    def epochs(self) -> int:
        """How often the data was seen to be gone through, at least 1."""
        sites = self.document.get("sites") or ()
        return max(1, sum(int(one["count"]) for one in sites if one["what"] == "epoch_start"))

    @property
    def has_workers(self) -> bool:
        return any(one.get("num_workers") for one in self.loaders)

    @property
    def config(self) -> ProgramConfig:
        """Settings of models, optimizers and switches."""
        return self.document.get("config") or ProgramConfig()

    @property
    def switches(self) -> Switches:
        """torch's own."""
        return self.config.get("switches") or {}

    @property
    def models(self) -> Sequence[ModelFacts]:
        """The models that are described."""
        return self.config.get("models") or ()

    @property
    def every_model(self) -> Sequence[ModelFacts]:
        """The same, plus a model without known properties if there may be others."""
        return self.models if 0 < len(self.models) < _DESCRIBED_MODELS else ({},)

    @property
    def optimizers(self) -> Sequence[OptimizerFacts]:
        """Those that stepped."""
        return self.config.get("optimizers") or ()

    @property
    def convolved_dims(self) -> set[int]:
        """The numbers of dimensions the models convolve over; all if unknown."""
        return {dims for one in self.every_model for dims in one.get("convolved_dims", (1, 2, 3))}

    @property
    def compiles(self) -> bool:
        return any(model["compiled"] for model in self.models)

    @property
    def trains(self) -> bool:
        """Whether it trains; True if unknown."""
        return self._steps.get("what") in (None, "training")

    @property
    def data_wait_share(self) -> float | None:
        """The share of a step in which it waits for data; None: unknown."""
        step_ms = self._steps.get("mean_ms")
        waits = (self.document.get("phases_ms") or {}).get("data_wait")
        return None if not step_ms or waits is None else float(waits / step_ms)

    @property
    def batch_bytes(self) -> int | None:
        """Bytes of the largest batch; None: unknown."""
        return self._steps.get("batch_bytes")

    @property
    def _steps(self) -> Mapping[str, Any]:
        return self.document.get("steps") or {}

    @property
    def batch_size(self) -> int | None:
        """Batch size of the first loader that forms batches, or None."""
        sizes = [one.get("batch_size") for one in self.loaders]
        return next((int(size) for size in sizes if size), None)

    @property
    def usable_cores(self) -> int:
        """Cores the program, or each of its ranks, may use; 4 if unknown."""
        cpu = (self.config.get("machine") or {}).get("cpu") or {}
        shared = (self.config.get("distributed") or {}).get("local_ranks") or 1
        return max(1, int((cpu.get("usable_cores") or 4) / shared))

    @property
    def lacks_bf16(self) -> bool:
        """Whether its GPU is known to be too old for bf16."""
        gpus = (self.config.get("machine") or {}).get("gpus") or ()
        versions = [gpu.get("compute_capability") for gpu in gpus]
        known = [float(version) for version in versions if version]
        return self.device == "cuda" and bool(known) and max(known) < _BF16_SINCE

    @property
    def findings(self) -> Sequence[FindingFacts]:
        """All findings, those with small gains last."""
        return (*self.document.get("findings", ()), *self.document.get("minor", ()))

    @property
    def samples_wait(self) -> bool:
        """Whether making a sample waits (for storage) rather than computes."""
        return any(one["id"] == "data.slow_storage" for one in self.findings)

    def proposed(self, name: str) -> bool:
        """Whether a finding names this fix first."""
        fixes = [one["fix"] for one in self.findings]
        return any(fix["name"] == name for fix in fixes if fix is not None)

    def objection(self, name: str) -> Rejection | None:
        """Why a fix would not apply to the program, as it said itself; None where it may."""
        said = {one["name"]: one for one in self.document.get("fix_checks") or ()}.get(name)
        refused = None if said is None else said["refused"]
        return (
            None
            if said is None or refused is None
            else Rejection(refused["reason"], text=said["text"])
        )

    def waits_for(self, what: str) -> bool:
        """Whether it was seen to wait for the device in this way: "synchronize", "item"."""
        return any(one["what"] == what for one in self.document.get("syncs") or ())


def waits_little(program: ObservedProgram) -> Rejection | None:
    """The reason if batches are made in the program's own process and it hardly waits for them,
    else None."""
    share = program.data_wait_share
    if program.has_workers or share is None or share >= _LITTLE_WAIT:
        return None
    return unsuitable(LITTLE_WAIT, share)


def unsuitable(reason: Reason, detail: float | str | None = None) -> Rejection:
    """The rejection of a fix that cannot help. The reason's words may use `{detail}`, or `{size}`
    for bytes."""
    size = "" if detail is None or isinstance(detail, str) else format_bytes(detail)
    return Rejection(reason.id, detail, text=reason.words.format(detail=detail, size=size))
