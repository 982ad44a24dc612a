"""`stepscope report`: which files come out, and what is refused in one line."""

import csv
import io
import json
import subprocess
import sys
import webbrowser

import pytest
from story_reading import unpacked
from tune_documents import tune_folder, tuned

from stepscope.cli.main import main


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """The folder of a tune, named by its id from where the command is run."""
    monkeypatch.chdir(tmp_path)
    return tune_folder(tmp_path / ".stepscope" / "tune-1")


def report(*words):
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words)])
    return ended.value.code


def test_without_a_file_the_page_lies_in_the_results_folder(tune, capsys):
    assert report("tune-1") == 0
    assert (tune / "tune-1.html").read_text().startswith("<!doctype html>")
    told = capsys.readouterr()
    assert told.out == ""
    assert "tune-1.html" in told.err
    assert "3 charts" in told.err


def test_nothing_is_overwritten_unless_told(tune, tmp_path, capsys):
    (tmp_path / "a.md").write_text("mine")
    assert report("tune-1", "-o", "a.md") == 2
    assert "a.md exists: --force replaces it" in capsys.readouterr().err
    assert (tmp_path / "a.md").read_text() == "mine"
    assert report("tune-1", "-o", "a.md", "--force") == 0
    assert (tmp_path / "a.md").read_text().startswith("# tune of train.py")


def test_what_would_be_written_beside_is_not_overwritten_either(tune, tmp_path, capsys):
    (tmp_path / "a-part.tex").write_text("mine")
    (tmp_path / "b-ladder-chart.png").write_text("mine")
    assert report("tune-1", "-o", "a.tex") == 2
    assert report("tune-1", "-o", "b.png") == 2
    assert "a-part.tex exists" in capsys.readouterr().err


def test_an_unknown_ending_is_answered_with_those_there_are(tune, capsys):
    assert report("tune-1", "-o", "a.docx") == 2
    told = capsys.readouterr().err
    assert ".html, .md" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothere",), "no run nothere"),
        (("tune-1", "-o", "no/such/a.html"), "cannot write"),
        (("tune-1", "-o", "a.csv", "--part", "x"), "there is no table x: ladder"),
        (("tune-1", "-o", "a.png", "--part", "x"), "there is no chart x: ladder-chart"),
        (("tune-1", "-o", "a.md", "--format", "csv"), "--format goes with -o -"),
        (("tune-1", "tune-1", "-o", "a.ipynb"), "a notebook takes one result"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tune, capsys, words, said):
    assert report(*words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_text_goes_to_a_pipe(tune, capsys):
    assert report("tune-1", "-o", "-") == 0
    assert capsys.readouterr().out.startswith("# tune of train.py")
    assert report("tune-1", "-o", "-", "--format", "csv") == 0
    assert next(csv.reader(io.StringIO(capsys.readouterr().out)))[0] == "rung"
    assert report("tune-1", "-o", "-", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == tuned()
    assert report("tune-1", "-o", "-", "--format", "txt") == 0
    assert "speedup" in capsys.readouterr().out


def test_charts_are_written_each_or_one_alone(tune, tmp_path):
    assert report("tune-1", "-o", "c.svg") == 0
    assert sorted(path.name for path in tmp_path.glob("c-*.svg")) == [
        "c-ladder-chart.svg",
        "c-predicted.svg",
        "c-proof-losses.svg",
    ]
    assert report("tune-1", "-o", "one.png", "--part", "predicted") == 0
    assert (tmp_path / "one.png").is_file()


def test_a_log_for_tensorboard_is_not_mixed_with_another(tune, tmp_path, capsys):
    assert report("tune-1", "--tensorboard", "tb") == 0
    assert len(list((tmp_path / "tb").iterdir())) == 1
    assert not (tune / "tune-1.html").exists()
    assert report("tune-1", "--tensorboard", "tb") == 2
    assert "already has a log" in capsys.readouterr().err


def test_open_shows_the_page(tune, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    assert report("tune-1", "--open") == 0
    assert shown == [(tune / "tune-1.html").as_uri()]


def test_redacted_reports_tell_no_names(tune, tmp_path):
    for ending in ("md", "json", "html", "txt"):
        assert report("tune-1", "-o", f"r.{ending}", "--redact") == 0
        text = (tmp_path / f"r.{ending}").read_text()
        assert "/home/ann" not in text
        assert "train.py" not in text


def test_the_last_run_is_meant_where_nothing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert report() == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    folder = unpacked("unfused_optimizer", tmp_path / ".stepscope")
    assert report() == 0
    assert list(folder.glob("*.html"))


def test_two_runs_make_one_page_that_compares_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [unpacked(name, tmp_path) for name in ("unfused_optimizer", "launch_bound")]
    assert report(*runs, "-o", "two.md") == 0
    page = (tmp_path / "two.md").read_text()
    assert "## Versions" in page
    assert "Kernel by kernel" in page


def test_the_parent_imports_no_torch(tune, tmp_path):
    code = (
        "import sys\nfrom stepscope.cli.main import main\n"
        "try:\n    main(['report', 'tune-1', '-o', 'x.html'])\n"
        "except SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert (tmp_path / "x.html").is_file()
