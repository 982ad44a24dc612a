"""Where in the user's source things happen, from counters and facts made by hand."""

from stepscope.analyze.run.document import SyncSite
from stepscope.analyze.run.sites import (
    Site,
    hot_sites,
    loader_sites,
    read_sites,
    sync_sites,
    unobserved_children,
)
from stepscope.record.facts import (
    CompileFact,
    Facts,
    HostWait,
    LoaderFact,
    SiteFact,
    SiteKind,
    WorkersFact,
)
from stepscope.record.row_log import SITE_COLUMNS
from stepscope.store.json_lines import FactLog, read_facts
from stepscope.store.table import Table


def site(what, line=1, count=1, total_ms=1.0, nbytes=0, file="/home/me/train.py"):
    kind, _, wait = what.partition(":")
    wait = HostWait(wait) if wait else None
    fact = SiteFact(id=0, kind=SiteKind(kind), wait=wait, file=file, line=line, function="train")
    return Site(fact, count, total_ms, nbytes)


def test_counters_meet_their_lines(tmp_path):
    written = FactLog(tmp_path / "facts.jsonl")
    about = {"file": "/home/me/train.py", "function": "train"}
    forward = SiteFact(id=0, kind=SiteKind.FORWARD, line=10, **about)
    item = SiteFact(id=1, kind=SiteKind.SYNC, wait=HostWait.ITEM, line=12, **about)
    written.write(forward)
    written.write(item)
    table = Table(tmp_path / "sites.npy", SITE_COLUMNS, chunk_rows=8)
    for index, value in enumerate([4, 8e6, 0, 0, 0, 0, 1, 2e6, 32, 1, 3e6, 32]):
        table.cells[index] = value
    found = read_sites(tmp_path, read_facts(tmp_path / "facts.jsonl"))
    assert found == {0: Site(forward, 4, 8.0, 0), 1: Site(item, 2, 5.0, 64)}


def test_a_line_whose_counters_were_lost_counts_nothing(tmp_path):
    written = FactLog(tmp_path / "facts.jsonl")
    written.write(SiteFact(id=3, kind=SiteKind.FORWARD, file="a.py", line=1, function="f"))
    [found] = read_sites(tmp_path, read_facts(tmp_path / "facts.jsonl")).values()
    assert (found.count, found.total_ms, found.nbytes) == (0, 0, 0)


def test_waits_for_the_device_come_costliest_first():
    sites = {
        0: site("sync:item", 10, 5, 2.0),
        1: site("sync:pageable copy", 11, 7, 9.0, nbytes=4096),
        2: site("forward", 12, 5, 100.0),
        3: site("sync:cpu", 13, 0, 0.0),
    }
    first, second = sync_sites(sites)
    assert first == SyncSite(HostWait.PAGEABLE_COPY, 7, 9.0, 4096, "/home/me/train.py", 11)
    assert (second.what, second.bytes) == ("item", None)


def test_hot_lines_leave_waits_and_what_never_happened_to_others():
    sites = {
        0: site("forward", 10, 5, 20.0),
        1: site("backward", 11, 5, 30.0),
        2: site("sync:item", 12, 5, 99.0),
        3: site("setup:item", 13, 5, 99.0),
        4: site("loader", 14, 0, 0.0),
    }
    assert [(found.what, found.line) for found in hot_sites(sites)] == [
        ("backward", 11),
        ("forward", 10),
    ]


def test_waits_of_the_preparation_are_not_waits_of_the_loop():
    assert sync_sites({0: site("setup:item", 12, 5, 99.0)}) == []


def test_a_loader_knows_the_line_that_made_it():
    facts = Facts(
        [
            LoaderFact(id=0, site=4, num_workers=2, batch_size=8),
            LoaderFact(id=1, site=None, num_workers=0, batch_size=4),
            LoaderFact(id=2, site=99, num_workers=0, batch_size=4),
        ]
    )
    found = loader_sites(facts, {4: site("loader", 31)})
    assert found[0].to_json() == {
        "id": 0, "num_workers": 2, "batch_size": 8, "file": "/home/me/train.py", "line": 31,
    }  # fmt: skip
    assert [(loader.file, loader.line) for loader in found[1:]] == [(None, None)] * 2


def test_processes_the_program_started_itself_are_told_from_workers():
    facts = Facts([WorkersFact(loader=0, pids=[11, 12])])
    processes = {
        "11": "python train.py",
        "12": "python train.py",
        "13": "python -c from multiprocessing.resource_tracker import main;main(5)",
        "14": "python -c from multiprocessing.forkserver import main",
        "15": "/usr/bin/python3 rank.py --rank 1",
        "16": "nvidia-smi",
        "17": "sh -c true",
    }
    assert unobserved_children(processes, facts) == {"15": "/usr/bin/python3 rank.py --rank 1"}


def test_compiling_starts_no_children_of_the_program():
    facts = Facts([CompileFact(site=0, what="f")])
    helper = "python /env/site-packages/torch/_inductor/compile_worker/__main__.py --pickler=x"
    assert unobserved_children({"20": helper, "21": "/env/bin/python -c"}, facts) == {}


def test_a_program_alone_has_no_children():
    assert unobserved_children({}, Facts()) == {}
