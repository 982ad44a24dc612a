"""Renderers: one list, which other packages extend."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import pytest
from batch_world import World
from story_reading import unpacked
from test_screens import searched

from stepscope.cli.report import report
from stepscope.record.errors import UsageError
from stepscope.report.render import formats
from stepscope.report.render.files import prepare_report
from stepscope.report.render.formats import RENDERERS, all_renderers, piped_renderer, renderer_for

PLUGINS = Path(__file__).parents[1] / "plugins"


@pytest.fixture
def example(monkeypatch):
    """The example package, as if it were installed."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    all_renderers.cache_clear()
    yield
    all_renderers.cache_clear()
    for name in [name for name in sys.modules if name.startswith("stepscope_example")]:
        del sys.modules[name]


def test_no_two_renderers_take_the_same_name_or_ending():
    endings = [ending for one in RENDERERS for ending in one.endings]
    assert len(set(endings)) == len(endings)
    assert len({one.name for one in RENDERERS}) == len(RENDERERS)
    assert all(ending.startswith(".") for ending in endings)


def test_each_says_what_comes_out():
    assert all(one.purpose for one in RENDERERS)


def test_the_file_ending_picks_the_renderer():
    assert renderer_for(Path("a.HTML")).name == "html"
    assert renderer_for(Path("b.svg")).name == "images"
    with pytest.raises(UsageError, match=r"\.html, \.md"):
        renderer_for(Path("c.docx"))


def test_what_is_not_text_cannot_be_printed():
    with pytest.raises(UsageError, match="choose md, txt, json, csv"):
        piped_renderer("pdf")


def test_another_package_adds_a_renderer(example, tmp_path, capsys):
    assert entry_points(group=formats.ENTRY_POINTS)["outline"].value.endswith(":Outline")
    run = unpacked("loader_transform", tmp_path)
    out = tmp_path / "run.outline"
    assert report.main([str(run), "-o", str(out)], standalone_mode=False) == 0
    lines = out.read_text().splitlines()
    assert lines[0].startswith("Training waits for the data loader")
    assert "- The step" in lines
    assert report.main([str(run), "-o", "-", "--format", "outline"], standalone_mode=False) == 0
    assert capsys.readouterr().out == out.read_text()


def test_a_renderer_that_does_not_load_is_named(monkeypatch):
    class Point:
        name, value = "broken", "nowhere:Missing"

        def load(self):
            raise ImportError("nowhere")

    all_renderers.cache_clear()
    monkeypatch.setattr(formats, "entry_points", lambda group: [Point()])
    with pytest.raises(UsageError, match="renderer broken"):
        all_renderers()
    all_renderers.cache_clear()


def test_a_batch_search_is_reported_too(tmp_path):
    (tmp_path / "batch.json").write_bytes(msgspec.json.encode(searched(World())))
    report = prepare_report([str(tmp_path)], redact=False, cwd=tmp_path)
    for name in ("md", "txt", "json", "csv"):
        assert "256" in piped_renderer(name).text(report, None)
    page = renderer_for(Path("x.html")).text(report, None)
    assert "Throughput by batch size" in page
    assert "></a>" not in page.partition("</nav>")[0], "a section without a title is not linked"
