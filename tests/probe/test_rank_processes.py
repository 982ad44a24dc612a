"""Which processes are ranks, and where they write."""

import pytest

from stepscope.probe.ranks.processes import _is_for_rank, claim_folder, launched_rank
from stepscope.record.probe_options import ProbeOptions, RankRole
from stepscope.store.folder import rank_folders


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "3"}, None),
        ({"RANK": "three", "WORLD_SIZE": "8"}, None),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, (5, 6)),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, (0, 1)),
    ],
)
def test_a_rank_is_told_by_its_environment(environ, rank):
    assert launched_rank(environ) == rank


@pytest.mark.parametrize(
    ("environ", "ranked"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, True),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, False),  # this process's own, copied
        ({"WORLD_SIZE": "2"}, False),
        ({"HOME": "/root"}, False),
    ],
)
def test_only_an_environment_with_a_rank_of_its_own_is_a_ranks(monkeypatch, environ, ranked):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert _is_for_rank(environ) is ranked


def test_a_rank_that_starts_again_gets_another_folder(tmp_path):
    names = [claim_folder(tmp_path, rank).name for rank in (1, 1, 0, 1)]
    assert names == ["1", "1.1", "0", "1.2"]
    assert [(one.rank, one.folder.name, one.restarts) for one in rank_folders(tmp_path)] == [
        (0, "0", 0),
        (1, "1.2", 2),
    ]


def test_what_is_no_ranks_folder_is_left_alone(tmp_path):
    for name in ("x", "1.x", "..1", "99999999"):
        (tmp_path / "ranks" / name).mkdir(parents=True)
    (tmp_path / "ranks" / "0").touch()
    assert rank_folders(tmp_path) == []
    assert rank_folders(tmp_path / "none") == []


@pytest.mark.parametrize("role", [None, *RankRole])
def test_a_role_survives_the_way_to_the_child(role):
    options = ProbeOptions("run", 0, ranks=role)
    assert ProbeOptions.from_json(options.to_json()) == options
