"""What --redact takes out of every format."""

import json
import socket

import pytest
from story_reading import run_subject, trace_subject, unpacked, whole
from subjects import of_document, subject
from tune_documents import tuned

from stepscope.report.render.html.page import render_page
from stepscope.report.render.markdown import markdown
from stepscope.report.story.narrator import story_of
from stepscope.results.redact import NameReplacements, redact_result

PRIVATE = ("/home/", "me/project", "train.py", "ann")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_subject(unpacked("unfused_optimizer_cuda", tmp_path_factory.mktemp("runs")))


def test_a_run_keeps_its_figures_and_loses_its_places(run):
    shown = redact_result(run)
    text = json.dumps(shown.document)
    assert "/home/" not in text
    assert "unfused_optimizer_cuda.py" not in text
    assert shown.document["steps"] == run.document["steps"]
    assert shown.document["findings"][0]["title"] == run.document["findings"][0]["title"]
    assert shown.document["findings"][0]["edit"] is None
    assert shown.document["config"]["environment"] == {}


def test_the_story_of_what_is_left_is_whole_and_has_no_source(run):
    story = story_of(redact_result(run))
    assert whole(story)
    page = render_page(story)
    assert "/home/me" not in page
    assert "optimizer = torch.optim" not in page
    assert "optimizer = torch.optim" in render_page(story_of(run))


def test_the_trace_is_not_handed_on_and_the_timeline_names_no_files(run):
    shown = redact_result(run)
    assert shown.trace is None
    assert shown.folder is None
    names = " ".join(shown.timeline.names)
    assert "unfused_optimizer_cuda.py" not in names
    assert "aten::" in names


def test_a_tune_loses_arguments_patch_and_folder():
    shown = redact_result(subject("tune", tuned())).document
    text = json.dumps(shown)
    assert not [word for word in PRIVATE if word in text]
    assert shown["command"] == "stepscope run --fix workers=8 --fix pin PROGRAM"
    assert shown["patch"]["text"] == ""
    assert "stepscope run --fix workers=8" in markdown(
        story_of(redact_result(subject("tune", tuned())))
    )


def test_a_trace_loses_its_name():
    shown = redact_result(trace_subject("resnet18_b32_h200"))
    assert "resnet18" not in shown.name
    assert "resnet18_b32" not in json.dumps(shown.document["source"])
    assert whole(story_of(shown))


def test_an_error_keeps_its_type_alone(run):
    broken = {**run.document, "run": {**run.document["run"]}}
    broken["run"]["error"] = {"type": "ValueError", "text": "password is hunter2"}
    shown = redact_result(subject("run", broken)).document
    assert shown["run"]["error"] == {"type": "ValueError", "text": ""}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("DataLoader at train.py:31", "DataLoader at file1.py:31"),
        ("open /data/secret/x.bin failed", "open file1.bin failed"),
        ("C:\\Users\\ann\\x.py broke", "file1.py broke"),
        ("~/kept/runs", "file1"),
        ("mail ann@corp.example", "mail user@host"),
        ("on gpu7.cluster.example.com", "on host"),
        ("at 10.1.2.3:8080", "at 0.0.0.0:8080"),
        ("507 samples/s, 3 J/sample", "507 samples/s, 3 J/sample"),
        ("aten::add and void at::native::copy<int>", "aten::add and void at::native::copy<int>"),
        ("self.net and torch.nn", "self.net and torch.nn"),
        ("driver 580.95.05, torch 2.11.0", "driver 580.95.05, torch 2.11.0"),
    ],
)
def test_words_that_tell_of_people_and_machines_are_replaced(text, shown):
    assert NameReplacements().text(text) == shown


def test_the_same_file_keeps_its_replacement_and_libraries_their_place():
    names = NameReplacements()
    assert names.file("/home/ann/train.py") == names.file("train.py") == "file1.py"
    assert names.file("/home/ann/other.py") == "file2.py"
    inside = "/x/lib/python3.12/site-packages/torch/optim/adam.py"
    assert names.file(inside) == "torch/optim/adam.py"
    assert names.text(names.text("at train.py:3")) == "at file1.py:3"


def redacted(document):
    return redact_result(of_document("run", "x", document)).document


def test_names_of_users_found_in_one_place_go_everywhere():
    found = redacted({"note": "ann's run", "where": ("/home/ann/x.py",), "n": 3})
    assert found == {"note": "user's run", "where": ["file1.py"], "n": 3}


def test_the_name_of_this_host_goes(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "bluebox7.lab")
    assert redacted({"note": "seen on bluebox7"}) == {"note": "seen on user"}
