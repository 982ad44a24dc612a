"""Every rank of a program is observed, however it came to be one, and trains as it does bare."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope.analyze.run.records import RunRecords
from stepscope.record.facts import RankFact
from stepscope.results.load import load

if TYPE_CHECKING:
    from conftest import Bench, Ended, Observed, Once

pytestmark = pytest.mark.launches
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
STEPS = 40


def lines(ended: "Ended") -> list[str]:
    assert ended.exit_code == 0, ended.stderr
    return sorted(ended.stdout.splitlines())


@pytest.fixture(scope="module")
def bare(once: "Once") -> "Ended":
    def make(bench: "Bench") -> "Observed":
        ended = bench.python(str(bench.programs / "ddp.py"), env=LOOPBACK)
        return bench.shown(ended, bench.folder)

    return once("bare_ranks", make).ended


@pytest.fixture(scope="module")
def forked(once: "Once") -> "Observed":
    """Ranks that the program forks itself, the second one slow in backward."""
    return once("forked_ranks", lambda bench: bench.run("ddp.py", "0.1", forked=True, env=LOOPBACK))


@pytest.fixture(scope="module")
def launched(once: "Once") -> "Observed":
    """Ranks under torch's own launcher."""
    return once("launched_ranks", lambda bench: bench.run("--ranks", "2", "ddp.py", env=LOOPBACK))


def test_observed_ranks_have_the_bare_losses(
    bare: "Ended", forked: "Observed", launched: "Observed"
) -> None:
    assert len(lines(bare)) == 2
    assert lines(forked.ended) == lines(bare)
    assert lines(launched.ended) == lines(bare)


@pytest.mark.parametrize("how", ["forked", "launched"])
def test_every_rank_has_its_steps(how: str, request: pytest.FixtureRequest) -> None:
    run: Observed = request.getfixturevalue(how)
    document = run.document
    assert [(one["rank"], one["steps"], one["state"]) for one in document["ranks"]] == [
        (0, STEPS, "ended"),
        (1, STEPS, "ended"),
    ]
    assert document["steps"]["count"] == STEPS
    assert document["problems"] == []
    assert document["config"]["distributed"] == {
        "world_size": 2,
        "backend": "gloo",
        "local_ranks": 2,
    }
    assert "2 ranks on 1 node" in run.shown.stdout
    assert run.ended.own_lines == []


@pytest.mark.parametrize("how", ["forked", "launched"])
def test_ranks_meet_in_each_backward(how: str, request: pytest.FixtureRequest) -> None:
    run: Observed = request.getfixturevalue(how)
    for one in RunRecords(Path(run.folder)).ranks:
        met = one.meetings
        backwards = met[met["kind"] == 1]
        assert len(backwards) == STEPS
        assert (backwards["begun_ns"] <= backwards["arrived_ns"]).all()
        assert (backwards["arrived_ns"] <= backwards["left_ns"]).all()
        assert len(met[met["kind"] == 2]) == 1  # the all-reduce at the end
        known = one.facts.last(RankFact)
        assert known is not None
        assert known.joined


def test_a_slow_backward_is_found_on_its_rank(forked: "Observed") -> None:
    late = forked.document["straggler"]
    assert late is not None
    assert (late["rank"], late["cause"], late["since_step"]) == (1, "backward", 1)
    assert late["place"]["file"].endswith("ddp.py")
    assert forked.document["findings"][0]["id"] == "ranks.straggler"
    assert "Rank 1 is late" in forked.ended.stderr


def test_a_rank_can_be_shown_alone(forked: "Observed") -> None:
    alone = load(Path(forked.folder) / "ranks" / "1").document
    assert alone["steps"]["count"] == STEPS
    assert alone["ranks"] == []
