"""The folder of a grid: resumed by the same request, kept from any other."""

import pytest
from measured import record
from msgspec.structs import replace

from stepscope.bench.grid import BenchRequest, Point
from stepscope.bench.run import RECORDS, REQUEST, open_bench_folder, read_records
from stepscope.record.errors import UsageError

REQUESTED = BenchRequest(models=("mlp",), modes=("train",), devices=("cpu",), batches=(4,))
MADE_WITH = {"torch": "2.13.0"}
POINT = Point.of("mlp", "train", 4, "cpu")


@pytest.fixture
def opened(tmp_path):
    """Opens the results in `tmp_path / "out"`."""

    def opened(request=REQUESTED, made_with=MADE_WITH, force=False, out=tmp_path / "out"):
        return open_bench_folder(out, request, made_with, force, tmp_path)

    return opened


def test_records_are_there_when_the_folder_is_opened_again(opened):
    with opened() as results:
        assert results.records == []
        results.append(record(POINT, 1))
        results.append(record(POINT, 2))
        begun = results.begun
    with opened() as results:
        assert [found.round for found in results.records] == [1, 2]
        assert results.records[0] == record(POINT, 1)
        assert results.begun == begun


def test_a_torn_last_line_is_dropped_and_the_next_record_is_whole(opened, tmp_path):
    with opened() as results:
        results.append(record(POINT, 1))
    with open(tmp_path / "out" / RECORDS, "ab") as file:
        file.write(b'{"key": "half a rec')
    with opened() as results:
        assert len(results.records) == 1
        results.append(record(POINT, 2))
    assert [found.round for found in read_records(tmp_path / "out" / RECORDS)] == [1, 2]


def test_damage_elsewhere_is_told(opened, tmp_path):
    with opened() as results:
        results.append(record(POINT, 1))
    path = tmp_path / "out" / RECORDS
    path.write_bytes(b"not JSON\n" + path.read_bytes())
    with pytest.raises(UsageError, match="damaged at line 1"):
        opened()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 5}, "rounds: 3, now 5"),
        ({"batches": (4, 8)}, "batches: 4, now 4, 8"),
        ({"settings": {"seed": 1}}, "seed"),
        ({"models": ("lstm",)}, "models: mlp, now lstm"),
    ],
)
def test_another_request_is_refused_and_says_what_differs(opened, change, says):
    opened().__exit__()
    with pytest.raises(UsageError) as caught:
        opened(replace(REQUESTED, **change))
    assert says in str(caught.value)
    assert "--force" in str(caught.value)


def test_another_torch_is_refused(opened):
    opened().__exit__()
    with pytest.raises(UsageError, match=r"torch: 2\.13\.0, now 2\.14\.0"):
        opened(made_with={"torch": "2.14.0"})


def test_prices_and_limits_may_change(opened):
    with opened() as results:
        results.append(record(POINT, 1))
    again = replace(REQUESTED, price_per_hour=3.0, carbon_intensity=400.0, timeout_s=9.0)
    with opened(again) as results:
        assert len(results.records) == 1


def test_a_changed_model_file_is_another_request(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def model(): ...\n")
    asked = replace(REQUESTED, models=("mine.py:model",))
    opened(asked).__exit__()
    opened(asked).__exit__()
    file.write_text("def model(): return 1\n")
    with pytest.raises(UsageError, match="files"):
        opened(asked)


def test_force_begins_anew(opened):
    with opened() as results:
        results.append(record(POINT, 1))
    with opened(replace(REQUESTED, rounds=1), force=True) as results:
        assert results.records == []
    with opened(replace(REQUESTED, rounds=1)) as results:
        assert results.records == []


def test_a_folder_of_something_else_is_left_alone_even_with_force(opened, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not empty and holds no results"):
        opened(force=True)
    assert (tmp_path / "out" / "thesis.tex").exists()


def test_a_folder_in_use_is_refused(opened):
    with opened(), pytest.raises(UsageError, match="in use"):
        opened(force=True)


def test_without_a_folder_each_grid_gets_its_own(opened, tmp_path):
    with opened(out=None) as one, opened(out=None) as other:
        assert one.folder != other.folder
        assert one.folder.parent == other.folder.parent == tmp_path / ".stepscope"
        assert one.folder.name.startswith("bench-")
        assert (one.folder / REQUEST).is_file()
    assert (tmp_path / ".stepscope" / ".gitignore").read_text() == "*\n"


def test_a_file_in_the_way_is_told(opened, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UsageError, match="file"):
        opened()


def test_an_id_that_is_taken_is_not_used_again(opened, monkeypatch):
    ids = iter(["1115-1319-788", "1115-1319-788", "1115-1319-789"])
    monkeypatch.setattr("stepscope.store.folder.new_id", lambda: next(ids))
    names = [opened(out=None).folder.name for _ in range(2)]
    assert names == ["bench-1115-1319-788", "bench-1115-1319-789"]
