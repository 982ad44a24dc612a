"""The HTML page as text: what it may do, what it says, what it escapes."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from stories import HOSTILE, LOADER, hostile, kernels, whole

from stepscope.record.errors import MissingExtra
from stepscope.report.render.html import escape, page
from stepscope.report.render.html.blocks import render_card, render_table
from stepscope.report.render.html.page import render_page
from stepscope.report.story.blocks import Column, Missing, Section, Story, Table, TimelineView
from stepscope.report.text import exact_cell, format_cell

NUMBER = Column("n", number=True)
SHARE = Column("share", number=True, percent=True)


class Parsed(HTMLParser):
    """Tags with attributes, and the text of each script element."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = attrs, text + data


def policy(parsed: Parsed) -> dict[str, str]:
    metas = [attrs for tag, attrs in parsed.tags if tag == "meta"]
    content = next(m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy")
    return dict(part.split(" ", 1) for part in str(content).split("; "))


def told(*blocks: object) -> Story:
    return Story("t", "v", "s", (Section("one", "One", tuple(blocks)),), "run")  # type: ignore[arg-type]


def test_every_script_that_runs_is_named_by_its_hash_and_nothing_may_be_fetched() -> None:
    parsed = Parsed(render_page(whole()))
    rules = policy(parsed)
    run = [text for attrs, text in parsed.scripts if "type" not in attrs]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    library = page.chart_library()[1]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [*(f"'sha256-{one}'" for one in hashes), library]
    assert "connect-src" not in rules
    assert rules["img-src"] == "data: blob:"


def test_the_chart_library_is_the_installed_one_packed() -> None:
    packed, hashed = page.chart_library()
    text = gzip.decompress(base64.b64decode(packed))
    assert b"plotly.js" in text[:200]
    assert hashed == page.source_hash(text.decode())
    assert len(packed) < 2_500_000


def test_a_page_without_charts_carries_no_library_and_a_usual_one_stays_small() -> None:
    plain = render_page(told(Missing("Nothing.", "run")))
    assert len(plain) < 60_000
    assert "chart-library" not in plain.partition("<body>")[2].partition("<script>")[0]
    assert len(render_page(whole())) < 3_000_000


def test_without_plotly_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    page.chart_library.cache_clear()
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'stepscope\[report\]'"):
        render_page(whole())
    page.chart_library.cache_clear()


def test_markup_in_every_word_adds_no_element_and_no_attribute() -> None:
    usual, bad = Parsed(render_page(whole())), Parsed(render_page(hostile(whole())))
    inside = {"span", "del", "code", "button"}
    # Long names are wrapped by a span of their own, and optional parts appear once they have text.
    assert {tag for tag, _ in bad.tags} == {tag for tag, _ in usual.tags}
    handlers = [name for _, attrs in bad.tags for name in attrs if name.startswith("on")]
    links = [attrs["href"] for tag, attrs in bad.tags if tag == "a"]
    images = [tag for tag, _ in bad.tags if tag in ("img", "iframe", "object", "form", "link")]
    assert not handlers
    assert not images
    assert all(re.fullmatch(r"#[\w-]+", str(link)) for link in links)
    assert len(bad.scripts) == len(usual.scripts)
    assert inside <= {tag for tag, _ in bad.tags}


def test_embedded_data_cannot_end_its_element_and_reads_back() -> None:
    value = {"name": "</script><!--<script>&\u2028\u2029'\"", "y": [1.5, None]}
    dumped = escape.json_for_script(value)
    assert not re.search(r"[<>&\u2028\u2029]", dumped)
    assert json.loads(dumped) == value


def test_embedded_data_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        escape.json_for_script({"y": float("nan")})


def test_text_is_escaped_and_what_cannot_be_seen_is_made_visible() -> None:
    assert escape.escape_text("<b>&\x1b[31m\u202e\udc80") == "&lt;b&gt;&amp;·[31m·?"
    assert escape.escape_attribute("\" onload='x'") == "&quot; onload=&#x27;x&#x27;"
    assert escape.escape_code("if x:\n\ty <z") == "if x:\n    y &lt;z"
    assert escape.escape_label("<a>%{x}&lt;") == "&lt;a&gt;% {x}&amp;lt;"


def test_the_whole_hostile_page_is_writable_text() -> None:
    page = render_page(hostile(whole()))
    assert page.encode("utf-8")
    assert HOSTILE not in page


@pytest.mark.parametrize(
    ("value", "column", "written"),
    [
        (None, NUMBER, "–"),
        (float("nan"), NUMBER, "–"),
        (True, Column("b"), "yes"),
        (1240, NUMBER, "1,240"),
        (-3, NUMBER, "−3"),
        (1240.4, NUMBER, "1,240"),
        (63.12, NUMBER, "63.1"),
        (0.012345, NUMBER, "0.0123"),
        (1.0, NUMBER, "1.00"),
        (0.0, NUMBER, "0"),
        (2.5e-9, NUMBER, "2.50e-09"),
        (float("inf"), NUMBER, "∞"),
        (0.6123, SHARE, "61.2%"),
        (-0.05, SHARE, "−5.0%"),
        (1, SHARE, "100%"),
        ("x", NUMBER, "x"),
    ],
)
def test_cells_are_written_for_reading(value: object, column: Column, written: str) -> None:
    assert format_cell(value, column) == written  # type: ignore[arg-type]


def test_what_is_sorted_is_the_whole_value() -> None:
    assert exact_cell(0.123456789) == "0.123456789"
    assert exact_cell(None) == ""
    assert exact_cell(False) == "0"


def test_a_table_shows_its_first_rows_and_says_how_many_wait() -> None:
    made = render_table(kernels(60))
    assert made.count("<tr hidden>") == 40
    assert "40 rows more" in made
    assert 'type="search"' in made


def test_a_short_table_has_no_filter_and_an_empty_one_says_so() -> None:
    columns = (Column("a"),)
    assert 'type="search"' not in render_table(Table("t", columns, (("x",),)))
    empty = render_table(Table("t", columns, ()))
    assert "No rows." in empty
    assert "CSV" not in empty


def test_a_finding_leads_to_its_place_only_where_there_is_a_timeline() -> None:
    assert 'data-from="1000000" data-to="49900000"' in render_card(
        LOADER, "findings-1", timeline=True
    )
    assert 'data-act="seek"' not in render_card(LOADER, "findings-1", timeline=False)


def test_a_finding_shows_its_line_its_edit_and_both_gains() -> None:
    made = render_card(LOADER, "findings-1", timeline=False)
    assert '<mark class="line"><b>31</b>loader = DataLoader(dataset, batch_size=32)</mark>' in made
    assert "<del>loader = DataLoader(dataset, batch_size=32)</del><ins>loader = DataLoader(" in made
    assert "predicted 2.6× (2.4–2.8)" in made
    assert "measured 2.70×" in made


def test_without_the_window_the_page_says_where_it_is() -> None:
    view = TimelineView(1200, "window.pt.trace.json.gz")
    assert "1,200 events in window.pt.trace.json.gz: open it" in render_page(told(view))
    assert "No timeline." in render_page(told(TimelineView(0, None)))


def test_ids_are_unique_also_where_a_section_is_called_like_the_timeline() -> None:
    parsed = Parsed(render_page(whole()))
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    links = [str(attrs["href"])[1:] for tag, attrs in parsed.tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert set(links) <= set(ids)
