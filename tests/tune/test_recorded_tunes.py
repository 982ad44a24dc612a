"""Tunes recorded with an earlier version: over the same trials the search decides the same.

The archives in tests/data/tunes hold the document of that version; how they are made:
tests/support/recorded_tunes.py.
"""

import json
from pathlib import Path

import msgspec
import pytest
from recorded_tunes import lay_out, request_of

from stepscope.launch.program import Program
from stepscope.measure import journal
from stepscope.measure.runner import TrialRunner
from stepscope.tune.request import TuneRequest
from stepscope.tune.tuner import open_tune

TUNES = sorted((Path(__file__).parent.parent / "data" / "tunes").glob("*.zip"))


@pytest.fixture(params=TUNES, ids=lambda path: path.stem)
def recorded(request, tmp_path, monkeypatch):
    """A recorded tune in a project of its own; its trials cannot be made again."""

    def not_recorded(self, request):
        pytest.fail(f"not in the journal: {request}")

    monkeypatch.setattr(TrialRunner, "__call__", not_recorded)
    monkeypatch.setattr(journal, "_difference", lambda then, now: None)  # another machine
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    lay_out(request.param, tmp_path / "project")
    return tmp_path / "project"


def decided(project):
    asked = request_of(project)
    program = Program(asked.pop("program"), tuple(asked.pop("argv")), module=False)
    several = {name: tuple(asked.pop(name)) for name in ("only", "skip")}
    request = TuneRequest(program, **asked, **several)
    with open_tune(request, project / "tune", resume=True, force=False, cwd=project) as tune:
        return tune.run(lambda event: None)


def test_recorded_trials_lead_to_the_same_decisions(recorded):
    before = json.loads((recorded / "tune" / "tune.json").read_text())
    after = json.loads(msgspec.json.encode(decided(recorded)))
    for part in ("untried", "trials", "seconds", "stopped", "search", "command"):
        assert after[part] == before[part], part
    assert same_facts(after["baseline"], before["baseline"])
    assert len(after["ladder"]) == len(before["ladder"])
    for new, old in zip(after["ladder"], before["ladder"], strict=True):
        assert same_facts(new, old)
    assert [(one["fix"], one["state"]) for one in after["rejected"]] == [
        (one["fix"], one["state"]) for one in before["rejected"]
    ]
    for part in ("final", "patch"):
        assert same_facts(after[part], before[part]), part


def same_facts(new, old):
    """Whether all that both have is equal, but for sentences."""
    if isinstance(new, dict) and isinstance(old, dict):
        shared = (new.keys() & old.keys()) - {"words", "detail"}
        return all(same_facts(new[key], old[key]) for key in shared)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(map(same_facts, new, old))
    return new == pytest.approx(old) if isinstance(new, float) else new == old
