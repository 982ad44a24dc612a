"""What fixes say of a program before anything is tried is what they do once they are asked to."""

import contextlib
import functools
import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fixing import fixed
from test_cuda_graph import Stand
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.steps import assemble_steps
from stepscope.fixes.arithmetic import sdpa
from stepscope.fixes.base import LiveLoader, LiveModel, LiveProgram, refused_by_all
from stepscope.fixes.data import pin, recycle
from stepscope.fixes.launching import compile as compiling
from stepscope.fixes.launching.cuda_graph import fix as graphing
from stepscope.fixes.registry import FIX_NAMES, all_fixes, fix_named
from stepscope.record.fix import FixState, NotApplied, Reason


class Plain(nn.Module):
    """What nothing speaks against."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Recurrent(nn.Module):
    """An LSTM before a linear layer."""

    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.lstm(x[:, None])[0][:, 0])


class Convolved(Plain):
    """Images of 2 × 4 before the layers."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x):
        return super().forward(self.convolution(x.view(-1, 1, 2, 4)).flatten(1))


class Block(nn.Module):
    """A part of two layers."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.two(self.one(x).relu())


class Talking(Block):
    """One that prints."""

    def forward(self, x):
        print("block")
        return super().forward(x)


def stacked(block: type[nn.Module]) -> nn.Module:
    return nn.Sequential(block(), block(), block(), nn.Linear(8, 3))


class Attending(nn.Module):
    """Attention whose weights are dropped, or used."""

    def __init__(self, uses=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last, self.uses = nn.Linear(8, 3), uses

    def forward(self, x):
        return self.last(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])


class UsingWeights(Attending):
    """The same, whose weights are used."""

    def forward(self, x):
        out, weights = self.attention(x[:, None], x[:, None], x[:, None])
        return self.last(out[:, 0]) * weights.sum()


class ByHand(nn.Module):
    """Attention written out."""

    def __init__(self):
        super().__init__()
        self.query, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        query = self.query(x)[:, None]
        scores = torch.matmul(query, query.transpose(1, 2)).softmax(-1)
        return self.last(torch.matmul(scores, query)[:, 0])


class Encoder(nn.Module):
    """torch's own layer, which fuses its attention."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.layer(x[:, None])[:, 0])


class Pair:
    """Inputs in a class that nobody but the program knows."""

    def __init__(self, x):
        self.x = x


class OfPair(Plain):
    """Called with one."""

    def forward(self, pair):
        return super().forward(pair.x)


class Decorated(Plain):
    """A forward under autocast, as accelerate makes it."""

    def __init__(self):
        super().__init__()
        self.forward = torch.autocast("cpu", torch.bfloat16)(self.forward)


def hooked() -> nn.Module:
    model = Plain()
    model.first.register_forward_hook(lambda *_: None)
    return model


def parameter_hooked() -> nn.Module:
    model = Plain()
    model.first.weight.register_hook(lambda grad: grad)
    return model


def buffer_with_gradients() -> nn.Module:
    model = Plain()
    model.register_buffer("scale", torch.ones(3, requires_grad=True))
    return model


class OwnAdam(torch.optim.Optimizer):
    """Not one of torch's."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)


class Samples(Dataset):
    """Always the same eight numbers for an index."""

    def __init__(self, count=24, size=8):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((self.size,), float(index % 5))


class Drawn(Samples):
    """Random ones."""

    def __getitem__(self, index):
        return torch.randn(self.size)


class Opened(Samples):
    """Reads from an open file."""

    def __init__(self, file):
        super().__init__()
        self.file = file


class OnGpu(Samples):
    """Puts samples on the GPU, where asked for a negative index."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample if index >= 0 else sample.cuda()


class Stream(IterableDataset):
    """The same without an index."""

    def __iter__(self):
        return (torch.full((8,), float(index % 5)) for index in range(24))


def own_collate(samples):
    return torch.cat([sample[None] for sample in samples])


Make = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A small program; `reason`: by what the fix refuses it, None where it applies."""

    fix: str
    reason: str | None
    model: Make = Plain
    optimizer: Make = torch.optim.AdamW
    loader: Make | None = None
    around: Make = contextlib.nullcontext
    wrap: Make = lambda x: x
    optimizers: int = 1
    said: str | None = None
    """What the fix itself gives as its reason, where it learns only later that it has nothing to
    do."""
    more: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        torch.manual_seed(0)
        model = self.model()
        optimizers = [self.optimizer(model.parameters()) for _ in range(self.optimizers)]
        loader = self.loader() if self.loader else [torch.randn(4, 8) for _ in range(8)]
        steps = 0
        while steps < 8:
            for x in loader:
                with self.around():
                    loss = model(self.wrap(x[:, :8])).float().square().mean()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                steps += 1


adamw, sgd = torch.optim.AdamW, torch.optim.SGD


def made(cls: Make, **arguments: Any) -> Make:
    return functools.partial(cls, **arguments)


def loads(dataset: Make = Samples, **arguments: Any) -> Make:
    return lambda: DataLoader(dataset(), **{"batch_size": 4} | arguments)


def sampled() -> DataLoader[Any]:
    """Batches of a sampler that is nobody's but the program's."""
    return DataLoader(Samples(), batch_sampler=[[0, 1], [2, 3], [4, 5]])


def torchs_batches() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_sampler=BatchSampler(range(24), 4, False))


def compiled() -> nn.Module:
    return torch.compile(Plain(), backend="eager")


def averaged() -> nn.Module:
    return AveragedModel(Convolved())


def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # it is deprecated
        return torch.jit.script(Plain())


def opened() -> DataLoader[Any]:
    return DataLoader(Opened(io.FileIO(__file__)), batch_size=4)


def one_device() -> nn.Module:
    return nn.DataParallel(Plain())


def embedded() -> nn.Module:
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 3, sparse=True)

        def forward(self, x):
            return self.table(x.abs().long().clamp(max=9)).sum(1)

    return Embedded()


LARGE = made(Samples, size=20_000)
CASES = [
    Case("fused_optimizer", None),
    Case("fused_optimizer", None, model=one_device),
    Case("fused_optimizer", "program_sets_flag", optimizer=made(adamw, fused=False)),
    Case("fused_optimizer", "program_sets_flag", optimizer=made(adamw, foreach=True)),
    Case("fused_optimizer", "no_such_version", optimizer=made(torch.optim.Adamax)),
    Case("fused_optimizer", "not_torchs_step", optimizer=OwnAdam),
    Case("fused_optimizer", "sparse_gradients", model=embedded, optimizer=made(sgd, lr=0.1)),
    Case("foreach", None),
    Case("foreach", "program_sets_flag", optimizer=made(adamw, fused=True)),
    Case("foreach", "tensor_learning_rate", optimizer=made(adamw, lr=torch.tensor(0.1))),
    Case("amp", None),
    Case("amp", None, model=Recurrent),
    Case("amp", "own_autocast", around=made(torch.autocast, device_type="cpu")),
    Case("amp", "own_autocast", model=Decorated),
    Case("amp", "half_already", model=lambda: Plain().bfloat16(), wrap=torch.Tensor.bfloat16),
    Case("amp", "no_float32", model=lambda: Plain().double(), wrap=torch.Tensor.double),
    Case("channels_last", None, model=Convolved),
    Case("channels_last", None, model=lambda: nn.DataParallel(Convolved())),
    Case("channels_last", None, model=averaged),
    Case("channels_last", "no_convolutions"),
    Case("compile", None),
    Case("compile", None, model=one_device),
    Case("compile", "program_compiles", model=compiled),
    Case("compile", "program_compiles", model=lambda: nn.DataParallel(compiled())),
    Case("compile", "torchscript", model=scripted),
    Case("checkpointing", None, model=lambda: stacked(Block)),
    Case("checkpointing", "no_repeated_blocks"),
    Case("checkpointing", "blocks_have_effects", model=lambda: stacked(Talking)),
    Case("checkpointing", "program_compiles", model=compiled),
    Case("sdpa", None, model=Attending),
    Case("sdpa", "weights_may_be_used", model=UsingWeights),
    Case("sdpa", "written_by_hand", model=ByHand),
    Case("sdpa", "nothing_to_fuse", model=Encoder, said="nothing_found"),
    Case("sdpa", "nothing_to_fuse", said="nothing_found"),
    Case("cuda_graph", None),
    Case("cuda_graph", None, model=one_device),
    Case("cuda_graph", "recurrent", model=Recurrent),
    Case("cuda_graph", "hooks", model=hooked),
    Case("cuda_graph", "parameter_hooks", model=parameter_hooked),
    Case("cuda_graph", "buffer_gradients", model=buffer_with_gradients),
    Case("cuda_graph", "strange_input", model=OfPair, wrap=Pair),
    Case("cuda_graph", "program_compiles", model=compiled),
    Case("cuda_graph", "torchscript", model=scripted),
    Case("accumulate=2", None),
    Case("accumulate=2", "several_optimizers", optimizers=2),
    Case("workers=1", None, loader=loads()),
    Case("workers=1", "open_handle", loader=opened),
    Case("workers=1", "cuda_in_workers", loader=loads(OnGpu)),
    Case("workers=1", "each_worker_all_data", loader=loads(Stream)),
    Case("persistent", None, loader=loads(num_workers=1)),
    Case("persistent", "has_no_workers", loader=loads()),
    Case("persistent", "keeps_workers", loader=loads(num_workers=1, persistent_workers=True)),
    Case("drop_last", None, loader=loads()),
    Case("drop_last", "drops_last_already", loader=loads(drop_last=True)),
    Case("drop_last", "own_batch_sampler", loader=sampled),
    Case("batch=8", None, loader=loads()),
    Case("batch=8", None, loader=torchs_batches),
    Case("batch=8", "own_batch_sampler", loader=sampled),
    Case("batch=8", "single_samples", loader=loads(batch_size=1)),
    Case("batch=8", "epoch_too_small", loader=loads(made(Samples, count=6))),
    Case("cache=1M", None, loader=loads()),
    Case("cache=1M", "samples_vary", loader=loads(Drawn)),
    Case("cache=1M", "iterable_dataset", loader=loads(Stream)),
    Case("cache=1M", "has_workers", loader=loads(num_workers=1)),
    Case("recycle", None, loader=loads(LARGE, num_workers=1)),
    Case("recycle", "small_batches", loader=loads(num_workers=1), said="nothing_found"),
    Case(
        "recycle",
        "own_collate",
        loader=loads(LARGE, num_workers=1, collate_fn=own_collate),
        said="nothing_found",
    ),
    Case("recycle", "has_no_workers", loader=loads(LARGE), said="nothing_found"),
    Case("tf32", "not_on_cuda"),
    Case("cudnn_benchmark", "no_cuda_convolutions", model=Convolved),
]  # fmt: skip


@pytest.fixture
def on_cpu(monkeypatch):
    """Fixes for the GPU go by the CPU, and torch.compile by a compiler that needs no tools."""
    monkeypatch.setattr(graphing, "GraphRecorder", Stand)
    monkeypatch.setattr(compiling, "_backend", "eager")
    monkeypatch.setattr(sdpa, "is_user_file", __file__.__eq__)  # not of other tests
    for name in ("cuda_graph", "tf32", "cudnn_benchmark"):
        monkeypatch.setattr(fix_named(name), "needs", None)
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch._dynamo.reset()


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.fix}-{one.reason}")
def test_a_fix_says_beforehand_what_it_does(case, tmp_path, on_cpu, capfd):
    name = case.fix.partition("=")[0]
    with fixed(tmp_path / "asked", checks=True) as run:
        case.run()
    said = run.checks()[name]
    with fixed(tmp_path / "applied", case.fix) as run:
        case.run()
    outcome = run.outcomes()[name]
    if case.reason is None:
        assert said is None
        assert outcome.state is FixState.APPLIED
    else:
        assert said is not None
        assert said.reason.id == case.reason
        assert said.text
        assert outcome.state is FixState.NOT_APPLICABLE
        assert (case.said or case.reason) in {one.reason.id for one in outcome.not_applied}


def test_every_fix_is_asked(tmp_path):
    with fixed(tmp_path, checks=True) as run:
        Case("", None).run()
    assert {*run.checks()} >= {*FIX_NAMES}


def test_what_is_asked_changes_nothing(tmp_path):
    def weights(checks):
        with fixed(tmp_path / str(checks), checks=checks):
            torch.manual_seed(0)
            model, loader = Convolved(), loads(Drawn)()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                for x in loader:
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
        return [*model.parameters(), torch.rand(1)]

    assert all(map(torch.equal, weights(checks=True), weights(checks=False)))


def test_the_time_it_takes_is_not_that_of_a_step(tmp_path):
    with fixed(tmp_path, checks=True):
        Case("", None).run()
    rows = RunRecords(tmp_path).rows
    steps = assemble_steps(rows, start_ns=float(rows["end_ns"][0]))
    spent = rows["observer_ns"][1:]
    assert (spent > 0).any()
    assert steps.account["window"] == pytest.approx(spent.sum())


def test_a_fix_that_fails_to_tell_is_left_out(tmp_path, monkeypatch):
    def fails(live):
        raise RuntimeError("no")

    monkeypatch.setattr(fix_named("foreach"), "check", fails)
    with fixed(tmp_path, checks=True) as run:
        Case("", None).run()
    assert "foreach" not in run.checks()
    assert "fused_optimizer" in run.checks()


def test_answers_stand_once_the_program_takes_itself_down(tmp_path):
    def train():
        Case("", None, model=Recurrent, loader=loads(num_workers=0)).run()

    with fixed(tmp_path, checks=True) as run:
        train()  # nothing of it is left at the end
    assert run.checks()["channels_last"] is not None
    assert run.checks()["persistent"] is not None


def test_one_of_two_models_is_enough():
    refused = NotApplied(Reason("why"))
    assert refused_by_all([refused, None]) is None
    assert refused_by_all([refused, NotApplied(Reason("other"))]) is refused
    assert refused_by_all([]) is None


def test_a_program_without_anything_meets_no_refusal_but_that_of_the_machine(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    machine = {"affinity"}
    said = {fix.name: fix.check(LiveProgram()) for fix in all_fixes()}
    assert {name for name, record in said.items() if record is not None} <= machine


def test_pinning_is_refused_for_what_is_on_the_gpu():
    for dataset in (Samples(), OnGpu()):
        loader = LiveLoader(DataLoader(dataset, batch_size=4))
        refused = fix_named("pin").check(LiveProgram(loader=loader))
        assert refused == pin.pinning_refused({"dataset": dataset})
        assert (refused is None) == (type(dataset) is Samples)
        assert fix_named("prefetch").check(LiveProgram(loader=loader)) == refused
    stream = LiveProgram(loader=LiveLoader(DataLoader(Stream(), batch_size=4)))
    assert fix_named("prefetch").check(stream).reason.id == "iterable_in_process"


def test_an_allocator_that_the_program_sets_up_itself(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    own = LiveProgram(environment_changed=("PYTORCH_CUDA_ALLOC_CONF",))
    assert fix_named("expandable_segments").check(own).reason.id == "program_sets_variable"
    assert fix_named("expandable_segments").check(LiveProgram()) is None


def test_another_library_that_computes_on_the_device(monkeypatch):
    assert fix_named("nosync").check(LiveProgram()) is None
    monkeypatch.setitem(sys.modules, "cupy", sys)
    assert fix_named("nosync").check(LiveProgram()).reason.id == "other_cuda_library"


def test_values_that_are_needed_at_once(tmp_path):
    source = tmp_path / "train.py"
    source.write_text(
        "def train(losses):\n"
        "    total = 0.0\n"
        "    for loss in losses:\n"
        "        total += loss.item()\n"
        "    return str(total)\n"
        "def stop(loss, kept):\n"
        "    kept.append(loss.item())\n"
    )
    summed, kept = (str(source), 4), (str(source), 7)
    check = fix_named("lazyitem").check
    assert check(LiveProgram(items=(kept,))).reason.id == "value_handed_on"
    assert check(LiveProgram(items=(kept, summed))) is None


def test_deterministic_programs_keep_cudnns_usual_algorithms(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = LiveProgram(models=(LiveModel(Convolved()),))
    assert fix_named("cudnn_benchmark").check(model).reason.id == "deterministic"


def test_collate_functions_that_use_torchs_own():
    def around(samples):
        return torch.utils.data.default_collate(samples)

    assert recycle.may_collate_by_torch(torch.utils.data.default_collate)
    assert recycle.may_collate_by_torch(around)
    assert recycle.may_collate_by_torch(functools.partial(own_collate))
    assert not recycle.may_collate_by_torch(own_collate)
    assert not recycle.may_collate_by_torch(torch.utils.data.default_convert)


def test_a_program_that_scales_its_losses(tmp_path):
    with fixed(tmp_path, checks=True) as run:
        model, scaler = Plain(), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.checks()["amp"].reason.id == "own_grad_scaler"


def test_arguments_are_those_a_loader_was_made_with():
    assert LiveLoader(sampled()).arguments["batch_sampler"] == [[0, 1], [2, 3], [4, 5]]
    assert "batch_sampler" not in LiveLoader(loads()()).arguments
