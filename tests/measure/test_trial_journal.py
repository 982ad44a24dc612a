"""The journal of a tune: what is in it is not run again, and it fits one tune only."""

import json

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from stepscope.measure.journal import (
    JOURNAL_FILE,
    JournalIdentity,
    MadeWith,
    journal_identity,
    open_journal,
    run_journaled,
    source_digests,
)
from stepscope.measure.trial.pool import BudgetSpent
from stepscope.measure.trial.record import ContestRequest, ProofRecord, Trial, TrialRequest
from stepscope.record.errors import UsageError
from stepscope.record.trial import TrialReason, TrialStatus
from stepscope.store.json_lines import RecordLog, read_record_lines

IDENTITY = JournalIdentity(
    "stepscope.tune-journal/2",
    {"program": "train.py", "argv": ["--lr", "0.1"], "allow": "numeric"},
    MadeWith(torch="2.13.0"),
    {"train.py": "aa", "model.py": "bb"},
)
BASE, PIN = TrialRequest(steps=40), TrialRequest(fixes=("pin",), steps=40)


class Machine:
    """Makes trials, and counts them."""

    def __init__(self):
        self.made = []

    def __call__(self, ask):
        self.made.append(ask)
        number = len(self.made)
        return Trial(
            ask, number, TrialStatus.OK, step_ms=(10.0 + number, 0.1), losses=(0.1 + 0.2, None)
        )


def search(run):
    """A search: the baseline twice, a fix, and the baseline once more."""
    return [run(ask) for ask in (BASE, BASE, PIN, BASE)]


def test_trials_are_kept_and_given_again_in_their_order(tmp_path):
    machine = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        first = search(run_journaled(machine, journal))
    with open_journal(tmp_path, IDENTITY) as journal:
        again = search(run_journaled(machine, journal))
    assert again == first
    assert len(machine.made) == 4
    assert [trial.number for trial in again] == [1, 2, 3, 4]


def test_a_trial_the_budget_cut_off_is_made_again_once_there_is_more(tmp_path):
    def cut(ask):
        return Trial(ask, 1, TrialStatus.TIMED_OUT, TrialReason.OUT_OF_BUDGET)

    with open_journal(tmp_path, IDENTITY) as journal:
        assert run_journaled(cut, journal)(BASE).reason is TrialReason.OUT_OF_BUDGET
        assert journal.trials == []
    with open_journal(tmp_path, IDENTITY) as journal:
        assert run_journaled(Machine(), journal)(BASE).ok


def test_limits_do_not_make_another_request(tmp_path):
    machine = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        run_journaled(machine, journal)(replace(BASE, limit_s=30.0, slow_ms=9.0))
    with open_journal(tmp_path, IDENTITY) as journal:
        run_journaled(machine, journal)(replace(BASE, limit_s=60.0))
    assert len(machine.made) == 1


def test_a_search_that_is_only_repeated_ends_where_the_journal_does(tmp_path):
    machine = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        run_journaled(machine, journal)(BASE)
    with open_journal(tmp_path, IDENTITY) as journal:
        again = run_journaled(machine, journal, lambda: False)
        assert again(BASE).ok
        with pytest.raises(BudgetSpent):
            again(BASE)
    assert len(machine.made) == 1


def test_an_interrupt_while_a_trial_is_written_leaves_a_whole_journal(tmp_path, monkeypatch):
    def interrupted(fd):
        raise KeyboardInterrupt

    machine = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        run = run_journaled(machine, journal)
        run(BASE)
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(PIN)
        run(BASE)
    with open_journal(tmp_path, IDENTITY) as journal:
        assert [trial.request for trial in journal.trials] == [BASE, BASE]


def test_a_search_goes_on_where_it_was(tmp_path):
    machine = Machine()

    def dies_at_the_third(ask):
        if len(machine.made) == 2:
            raise KeyboardInterrupt
        return machine(ask)

    with open_journal(tmp_path, IDENTITY) as journal, pytest.raises(KeyboardInterrupt):
        search(run_journaled(dies_at_the_third, journal))
    with open_journal(tmp_path, IDENTITY) as journal:
        assert len(journal.trials) == 2
        search(run_journaled(machine, journal))
    assert machine.made == [BASE, BASE, PIN, BASE]


def test_what_is_answered_is_what_will_be_read_again(tmp_path):
    def run(ask):
        return Trial(ask, 1, TrialStatus.OK, proof=ProofRecord(rates=(0.1, 0.2)), losses=(1 / 3,))

    with open_journal(tmp_path, IDENTITY) as journal:
        fresh = run_journaled(run, journal)(BASE)
    with open_journal(tmp_path, IDENTITY) as journal:
        assert run_journaled(run, journal)(BASE) == fresh
    assert fresh.proof.rates == (0.1, 0.2)


def test_a_torn_last_line_costs_that_trial_only(tmp_path):
    machine = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        search(run_journaled(machine, journal))
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:-20])
    with open_journal(tmp_path, IDENTITY) as journal:
        assert len(journal.trials) == 3
        search(run_journaled(machine, journal))
    assert len(machine.made) == 5
    assert len(read_record_lines(path, dict, "")) == 5


def test_a_torn_first_line_is_a_fresh_journal(tmp_path):
    (tmp_path / JOURNAL_FILE).write_text('{"schema": "stepsc')
    with open_journal(tmp_path, IDENTITY) as journal:
        assert journal.trials == []
    assert read_record_lines(tmp_path / JOURNAL_FILE, dict, "") == [to_builtins(IDENTITY)]


@pytest.mark.parametrize(
    ("part", "name", "value", "says"),
    [
        ("asked", "argv", ["--lr", "0.2"], "argv: --lr, 0.1, now --lr, 0.2"),
        ("asked", "allow", "exact", "allow: numeric, now exact"),
        ("made_with", "torch", "2.14.0", "torch: 2.13.0, now 2.14.0"),
        ("made_with", "gpu", "H200", "gpu: None, now H200"),
        ("sources", "model.py", "cc", "model.py changed"),
        ("sources", "new.py", "dd", "new.py is new"),
    ],
)
def test_a_journal_that_does_not_fit_is_refused_by_the_first_difference(
    tmp_path, part, name, value, says
):
    open_journal(tmp_path, IDENTITY).__exit__()
    now = to_builtins(IDENTITY)
    now[part][name] = value
    with pytest.raises(UsageError) as caught:
        open_journal(tmp_path, convert(now, JournalIdentity))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    open_journal(tmp_path, IDENTITY).__exit__()  # and the lock is free again


def test_a_source_that_is_gone_is_named(tmp_path):
    open_journal(tmp_path, IDENTITY).__exit__()
    with pytest.raises(UsageError, match=r"model\.py is gone"):
        open_journal(tmp_path, replace(IDENTITY, sources={"train.py": "aa"}))


def test_a_journal_of_another_version_is_refused(tmp_path):
    open_journal(tmp_path, replace(IDENTITY, schema="stepscope.tune-journal/1")).__exit__()
    with pytest.raises(UsageError, match="another version"):
        open_journal(tmp_path, IDENTITY)


def test_records_of_another_version_are_refused(tmp_path):
    open_journal(tmp_path, IDENTITY).__exit__()
    with open(tmp_path / JOURNAL_FILE, "a") as file:
        file.write('{"trial": {"ask": {"fixes": []}, "colour": "red"}}\n')
    with pytest.raises(UsageError, match="another version"):
        open_journal(tmp_path, IDENTITY)


def test_damage_is_told_with_its_line(tmp_path):
    open_journal(tmp_path, IDENTITY).__exit__()
    with open(tmp_path / JOURNAL_FILE, "a") as file:
        file.write("not JSON\n[]\n")
    with pytest.raises(UsageError, match="damaged at line 2"):
        open_journal(tmp_path, IDENTITY)


def test_a_second_tune_in_the_same_folder_is_told_in_one_line(tmp_path):
    with (
        open_journal(tmp_path, IDENTITY),
        pytest.raises(UsageError, match="in use by another tune"),
    ):
        open_journal(tmp_path, IDENTITY)
    with open_journal(tmp_path, IDENTITY) as journal:
        assert journal.trials == []


def test_a_full_disk_ends_the_tune_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with open_journal(tmp_path, IDENTITY) as journal:
        before = (tmp_path / JOURNAL_FILE).read_bytes()
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(UsageError, match="No space left"):
            run_journaled(Machine(), journal)(BASE)
        assert journal.trials == []
    assert (tmp_path / JOURNAL_FILE).read_bytes() == before


def test_lines_go_on_after_what_is_there(tmp_path):
    path = tmp_path / "lines"
    for number in (1, 2):
        lines = RecordLog(path)
        lines.append({"n": number})
        lines.close()
    assert read_record_lines(path, dict, "") == [{"n": 1}, {"n": 2}]
    assert read_record_lines(tmp_path / "none", dict, "") == []


def test_sources_are_the_programs_own(tmp_path):
    cwd = tmp_path / "work"
    for name in ("train.py", "lib/net.py", ".hidden/x.py", "__pycache__/y.py", "venv/z.py"):
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text(name)
    (cwd / "venv" / "pyvenv.cfg").touch()
    (cwd / "data.txt").touch()
    (tmp_path / "other.py").write_text("far")
    assert [*source_digests(cwd, "train.py")] == ["train.py", "lib/net.py"]
    assert [*source_digests(cwd, "../other.py")] == ["train.py", "lib/net.py", "../other.py"]
    before = source_digests(cwd, None)
    (cwd / "train.py").write_text("changed")
    assert source_digests(cwd, None)["train.py"] != before["train.py"]
    assert source_digests(cwd, "gone/../../gone.py")["gone/../../gone.py"] == "unreadable"


def test_an_identity_is_the_same_for_the_same_things(tmp_path):
    (tmp_path / "train.py").write_text("pass")
    made = [journal_identity({"argv": ("a",)}, tmp_path, {}, "train.py") for _ in range(2)]
    assert made[0] == made[1]
    assert made[0].made_with.torch is not None
    open_journal(tmp_path, made[0]).__exit__()
    with open_journal(tmp_path, made[1]) as journal:
        assert journal.trials == []


def test_a_killed_tune_inside_the_project_can_be_resumed(tmp_path):
    (tmp_path / "train.py").write_text("pass")
    out = tmp_path / "tuned"
    out.mkdir()
    open_journal(out, journal_identity({}, tmp_path, {}, "train.py")).__exit__()
    (out / "scratch").mkdir()
    (out / "scratch" / "train.py").write_text("pass")  # the copy of the trial under way
    with open_journal(out, journal_identity({}, tmp_path, {}, "train.py")) as journal:
        assert journal.trials == []


@pytest.mark.parametrize("in_place", [True, False])
def test_a_journal_keeps_whether_contests_are_held_in_place(tmp_path, in_place):
    with open_journal(tmp_path, replace(IDENTITY, in_place=in_place)) as journal:
        assert journal.in_place is in_place
    with open_journal(tmp_path, replace(IDENTITY, in_place=True)) as journal:
        assert journal.in_place is in_place


def test_a_journal_of_a_version_without_them_holds_none(tmp_path):
    with open_journal(tmp_path, IDENTITY):
        pass
    path = tmp_path / JOURNAL_FILE
    begun = json.loads(path.read_text())
    del begun["in_place"]
    path.write_text(json.dumps(begun) + "\n")
    with open_journal(tmp_path, replace(IDENTITY, in_place=True)) as journal:
        assert not journal.in_place


def test_a_search_killed_in_a_contest_repeats_no_more_than_that_trial(tmp_path):
    asked = replace(BASE, contests=ContestRequest((("pin",),), "numeric", 5.0, 5.0))

    def search_in_place(run):
        return [run(ask) for ask in (BASE, asked, PIN)]

    class Killed(Machine):
        def __call__(self, ask):
            if ask.contests is not None:
                raise KeyboardInterrupt
            return super().__call__(ask)

    with open_journal(tmp_path, IDENTITY) as journal, pytest.raises(KeyboardInterrupt):
        search_in_place(run_journaled(Killed(), journal))
    machine = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        search_in_place(run_journaled(machine, journal))
    assert machine.made == [asked, PIN]
    again = Machine()
    with open_journal(tmp_path, IDENTITY) as journal:
        search_in_place(run_journaled(again, journal))
    assert again.made == []
