"""Sentences of rules and findings are for people: random words in their place change nothing."""

import pytest
from random_words import RandomWords, replace_all_words
from recorded import ARCHIVES, unpack

from stepscope.analyze.run.document import to_json
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.summary import summarize
from stepscope.diagnose import findings as module
from stepscope.measure.prediction import predicted_by_findings
from stepscope.report.story.findings import suggested_fixes

NAMES = (
    "host_chatter",
    "loader_bound_cuda",
    "naive_attention_cuda",
    "pageable_copies",
    "recompilations",
    "slow_storage",
    "small_batch",
    "synchronize_every_step",
    "tuned_graph_cuda",
)
READ = ("title", "why", "advice", "reason", "text", "answer", "what", "unit", "words")
"""Keys of what is only read by people."""


def facts(document):
    """A document without what is only read by people."""
    if isinstance(document, dict):
        return {key: facts(value) for key, value in document.items() if key not in READ}
    if isinstance(document, list | tuple):
        return [facts(one) for one in document]
    return document


@pytest.mark.parametrize("name", NAMES)
def test_random_words_change_no_fact(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    folder = unpack(ARCHIVES / f"{name}.zip", tmp_path / name)
    records = RunRecords(folder)
    document = summarize(records)
    said = module.with_findings(document, records)
    replace_all_words(RandomWords(name), monkeypatch)
    other = module.with_findings(document, records)
    found = (*said.findings, *said.minor, *said.healthy)
    assert found
    assert {one.title for one in found}.isdisjoint(one.title for one in other.findings)
    for key in ("findings", "minor", "healthy", "headroom", "baseline", "problems"):
        assert facts(to_json(other)[key]) == facts(to_json(said)[key])
    assert predicted_by_findings(other) == predicted_by_findings(said)
    assert suggested_fixes(to_json(other)) == suggested_fixes(to_json(said))
