"""Where fixes take hold: around functions, in order, and inert where they must be."""

import gc
import weakref

import pytest
import torch
from fixing import fixed
from lightning.fabric import Fabric
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from stepscope.probe import observer
from stepscope.probe.points.root_model import inside_wrapper, is_called_compiled


@pytest.fixture
def run(tmp_path):
    with fixed(tmp_path) as run:
        yield run


def test_the_first_handler_is_outermost(run):
    said = []

    def handler(name):
        def handle(call, *args):
            said.append(name)
            return call(*args)

        return handle

    run.observer.seams.around(torch.linalg, "det", handler("first"))
    run.observer.seams.around(torch.linalg, "det", handler("second"))
    assert torch.linalg.det(torch.eye(2)) == 1
    assert said == ["first", "second"]


def test_handlers_may_answer_in_the_functions_place(run):
    run.observer.seams.around(torch.linalg, "det", lambda call, matrix: 7)
    assert torch.linalg.det(torch.eye(2)) == 7


def test_what_was_taken_hold_of_is_given_back(tmp_path):
    before = torch.linalg.det
    with fixed(tmp_path) as run:
        run.observer.seams.around(torch.linalg, "det", lambda call, matrix: 7)
        assert torch.linalg.det is not before
    assert torch.linalg.det is before


def test_in_a_forked_child_every_seam_is_inert(run):
    run.observer.seams.around(torch.linalg, "det", lambda call, matrix: 7)
    run.observer.forked()
    assert torch.linalg.det(torch.eye(2)) == 1
    gc.unfreeze()
    observer.current = run.observer  # so that its patches are taken out again


def test_a_root_is_prepared_once_and_not_kept_alive(run):
    prepared = []
    run.observer.seams.root_found(lambda module: prepared.append(type(module).__name__))
    model = nn.Linear(2, 2)
    for _ in range(3):
        model(torch.zeros(1, 2))
    assert prepared == ["Linear"]
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_only_the_outermost_model_is_a_root(run):
    called = []

    def around(call, module, *args):
        called.append(type(module).__name__)
        return call(module, *args)

    run.observer.seams.root_called(around)
    nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))(torch.zeros(1, 2))
    assert called == ["Sequential"]


def test_an_optimizers_step_is_met_once_though_it_calls_its_base(run):
    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    met = []

    def stepped(call, optimizer, *args):
        met.append(type(optimizer).__name__)
        return call(optimizer, *args)

    run.observer.seams.optimizer_stepped(stepped)
    for cls in (torch.optim.SGD, Mine):
        parameter = nn.Parameter(torch.ones(1))
        optimizer = cls([parameter], lr=0.5)
        parameter.grad = torch.ones(1)
        optimizer.step()
        assert parameter.item() == 0.5
    assert met == ["SGD", "Mine"]


class Own(AveragedModel):
    """With a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 1


def compiled(model):
    return torch.compile(model, backend="eager")


def in_fabric(model):
    return Fabric(accelerator="cpu", devices=1).setup(model)


@pytest.fixture
def group():
    """Of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    "wrap",
    [
        *(nn.DataParallel, DistributedDataParallel, compiled, in_fabric, AveragedModel),
        lambda model: DistributedDataParallel(compiled(model)),
        lambda model: AveragedModel(nn.DataParallel(model)),
        type("Mine", (DistributedDataParallel,), {}),
    ],
    ids=["dp", "ddp", "compiled", "fabric", "averaged", "compiled in ddp", "both", "subclass"],
)
def test_fixes_meet_the_model_inside_what_only_calls_it(run, group, wrap):
    prepared, called = [], []

    def around(call, module, *args):
        called.append(module)
        return call(module, *args)

    run.observer.seams.root_found(prepared.append)
    run.observer.seams.root_called(around)
    wrapped = wrap(nn.Linear(2, 2))
    inner = inside_wrapper(wrapped)
    assert type(inner) is nn.Linear
    expected = inner(torch.ones(1, 2))
    torch.testing.assert_close(wrapped(torch.ones(1, 2)), expected)
    torch.testing.assert_close(wrapped(torch.ones(1, 2)), expected)
    assert prepared == [inner]
    assert called == [inner] * 3


def test_a_wrapper_that_adds_something_is_a_model_itself():
    several = nn.DataParallel(nn.Linear(2, 2))
    several.device_ids = [0, 1]
    for model in (several, Own(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))):
        assert inside_wrapper(model) is model


def test_a_class_of_the_programs_with_a_wrappers_name_is_a_model_itself():
    model = type("DataParallel", (nn.Sequential,), {})(nn.Linear(2, 2))
    assert inside_wrapper(model) is model


def test_it_is_known_of_a_model_that_it_is_called_compiled():
    models = nn.Linear(2, 2), nn.Linear(2, 2)
    for model in (compiled(models[0]), AveragedModel(models[1])):
        inside_wrapper(model)
    assert [*map(is_called_compiled, models)] == [True, False]
