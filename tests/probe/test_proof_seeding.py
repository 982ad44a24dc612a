"""Seeds imposed on trials: the program's own under 0, others under another key."""

import pickle
import random

import numpy as np
import pytest
import torch
from seeded import plain, trial

from stepscope.probe.patches import ImportWatch
from stepscope.probe.proof.controls import batch_checksum, seeded_generators
from stepscope.probe.proof.seeding import Seeding, derived_seed
from stepscope.record.fix import FixKind, FixState, fix_outcomes

TRAINS = """
    import random, sys
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    {seeds}

    class Data(Dataset):
        def __len__(self):
            return 24
        def __getitem__(self, index):
            return torch.sin(torch.arange(4.0) * index), torch.tensor([float(index % 3)])

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Data(), batch_size=5, shuffle=True{loader})
    for epoch in range(2):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
    print(random.random().hex(), float(np.random.rand()).hex())
    print(float(np.random.default_rng({rng}).random()).hex())
"""
OWN = "random.seed(3); np.random.seed(4); torch.manual_seed(5)"


def source(seeds: str = "", loader: str = "", rng: str = "7") -> str:
    return TRAINS.format(seeds=seeds, loader=loader, rng=rng)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """A program that seeds itself, under keys 0 and 1."""
    folder = tmp_path_factory.mktemp("seeded")
    return [trial(folder / str(key), source(OWN), seed=key) for key in (0, 1)]


def test_under_key_0_a_program_that_seeds_itself_computes_what_it_does_under_plain_python(
    tmp_path, seeded
):
    found = seeded[0]
    assert found.out == plain(tmp_path / "plain", source(OWN))
    assert [loss.hex() for loss in found.losses] == found.out.split()[:-3]


def test_another_key_changes_everything_drawn_after_seeds_the_program_sets(seeded):
    zero, one = seeded
    assert not {*zero.out.split()} & {*one.out.split()}


def test_a_program_without_seeds_repeats_itself_under_every_key(tmp_path):
    program = source(rng="")
    zero, one, again = (
        trial(tmp_path / str(n), program, seed=key) for n, key in enumerate((0, 1, 1))
    )
    assert one.out == again.out
    assert not {*zero.out.split()} & {*one.out.split()}


def test_generators_given_to_loaders_order_data_by_the_key(tmp_path):
    program = """
        import torch
        from torch.utils.data import DataLoader
        for generator in (torch.Generator(), torch.Generator().manual_seed(11)):
            loader = DataLoader(range(40), generator=generator, shuffle=True)
            print([int(batch) for batch in loader])
    """
    outs = [trial(tmp_path / str(n), program, seed=key).out for n, key in enumerate((0, 1, 1))]
    assert outs[1] == outs[2]
    assert len({line for out in outs for line in out.splitlines()}) == 4


FROM_THE_CLOCK = """
    import random
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    for _ in range(2):
        random.seed()
        np.random.seed(None)
        returned = torch.seed()
        print(random.random(), np.random.rand(), torch.rand(1).item(), returned)
        assert torch.initial_seed() == returned
    torch.cuda.seed()
    torch.cuda.seed_all()

    class Draws(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return np.random.rand()

    def begin(worker):
        np.random.seed()

    for draw in DataLoader(Draws(), num_workers=2, worker_init_fn=begin):
        print(float(draw))
"""


def test_seeds_from_the_clock_are_imposed_and_differ_from_call_to_call_and_worker_to_worker(
    tmp_path,
):
    first, second = (trial(tmp_path / name, FROM_THE_CLOCK, seed=0).out for name in ("a", "b"))
    assert first == second
    assert len({*first.splitlines()}) == 10


def test_without_a_key_nothing_is_seeded(tmp_path):
    program = """
        import random
        import torch
        for function in (random.seed, torch.manual_seed):
            print("probe/proof/seeding" in function.__code__.co_filename)
        print(torch.Generator is torch._C.Generator)
    """
    assert trial(tmp_path / "run", program).out.split() == ["False", "False", "True"]


@pytest.mark.parametrize("asked", ["workers=2", "cache", "persistent"])
def test_exact_fixes_leave_every_loss_as_it_is(tmp_path, seeded, asked):
    program = source(OWN, loader=", num_workers=1" if asked == "persistent" else "")
    fixed = trial(tmp_path / "with", program, seed=1, fixes=(asked,))
    (outcome,) = fix_outcomes(fixed.facts.fixes)
    assert (outcome.state, outcome.kind) == (FixState.APPLIED, FixKind.EXACT)
    assert not outcome.not_applied
    assert fixed.losses == seeded[1].losses
    assert len(fixed.losses) == 10


def test_derived_seeds_fit_every_generator_and_depend_on_both():
    given = [0, 1, 2, -1, 2**32, "text", b"bytes", (1, 2)]
    found = {derived_seed(seed, key) for seed in given for key in (1, 2, 3)}
    assert len(found) == 3 * len(given)
    assert all(0 <= seed < 2**32 for seed in found)
    assert [derived_seed(seed, 0) for seed in given] == given


def test_a_generator_under_a_key_can_be_pickled_and_is_one_to_torch():
    seeding = Seeding(2)
    before = random.getstate(), torch.get_rng_state(), torch.Generator
    try:
        seeding.install(ImportWatch(0))
        made = torch.Generator("cpu")
        assert made.manual_seed(5) is made
        assert made.initial_seed() == derived_seed(5, 2)
        expected = torch.rand(3, generator=made)
        made.manual_seed(5)
        assert isinstance(torch.default_generator, torch.Generator)
        assert issubclass(before[2], torch.Generator)
        copy = pickle.loads(pickle.dumps(made))
        assert torch.equal(torch.rand(3, generator=copy), expected)
        assert made.seed() != made.seed()
    finally:
        seeding.remove()
        random.setstate(before[0])
        torch.set_rng_state(before[1])
    assert torch.Generator is before[2]


def test_a_fault_in_seeding_leaves_the_import_alone(capsys):
    class Broken(Seeding):
        def _torch(self, torch):
            raise ValueError("no such thing")

    seeding = Broken(0)
    before = random.getstate()
    try:
        seeding.install(ImportWatch(0))
    finally:
        seeding.remove()
        random.setstate(before)
    assert "could not seed torch" in capsys.readouterr().err


AUGMENTS = """
    import random
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.manual_seed(3)

    class Noisy(Dataset):
        own = np.random.default_rng(1)
        def __len__(self):
            return 24
        def __getitem__(self, index):
            return torch.rand(3) + np.random.rand() + random.random(), index

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, _ in DataLoader(Noisy(), batch_size=5, shuffle=True, num_workers=WORKERS):
            loss = model(torch.nn.functional.dropout(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def _augmented(folder, workers, held=True, program=AUGMENTS):
    program = program.replace("WORKERS", str(workers))
    return trial(folder, program, seed=1, proof=True, held=held)


def test_with_draws_held_workers_make_the_batches_of_the_programs_own_process(tmp_path):
    alone, helped = (_augmented(tmp_path / str(count), count) for count in (0, 2))
    assert alone.losses == helped.losses
    assert alone.proof["batches"] == helped.proof["batches"]
    assert len({*alone.proof["batches"]}) == 10
    free = [_augmented(tmp_path / f"free{count}", count, held=False) for count in (0, 2)]
    assert free[0].losses != free[1].losses
    assert "batches" not in free[0].proof


def test_draws_of_a_datasets_own_generator_cannot_be_held_and_show_in_the_batches(tmp_path):
    own = AUGMENTS.replace("np.random.rand()", "self.own.random()")
    alone, helped = (_augmented(tmp_path / str(n), n, program=own) for n in (0, 2))
    assert alone.proof["batches"] != helped.proof["batches"]


def test_other_keys_draw_otherwise_and_what_has_no_tensors_has_no_checksum():
    def drawn(seed):
        with seeded_generators(seed):
            return random.random(), np.random.rand(), torch.rand(1).item()

    random.seed(0)
    after = random.Random(0).random()
    assert drawn(1) == drawn(1) != drawn(2)
    assert random.random() == after
    numbers = {"a": torch.arange(5000), "b": [np.ones(3), "text", torch.ones(2).bfloat16()]}
    other = {**numbers, "a": torch.arange(5000) + 1}
    assert batch_checksum(numbers) == batch_checksum(numbers) != batch_checksum(other)
    assert batch_checksum(["text", 3]) is None
    with pytest.raises(TypeError):
        batch_checksum([np.array([object()])])
