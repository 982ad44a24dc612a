"""Writes of a guarded program: kept in the scratch copy, or stopped with path and line."""

from pathlib import Path

import pytest
from guarded import guarded, import_first, state_of

from stepscope.measure import scratch_copy
from stepscope.probe.guard.walls import find_wall
from stepscope.record.facts import WriteAction, WroteOutsideFact
from stepscope.record.probe_options import Wall

needs_wall = pytest.mark.skipif(
    find_wall() is Wall.NONE, reason="neither namespaces nor Landlock here"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a large file, a data folder that is linked whole, and small files."""
    monkeypatch.setattr(scratch_copy, "_DATA_FILES", 10)
    folder = tmp_path / "me" / "project"
    (folder / "data" / "train").mkdir(parents=True)
    for number in range(20):
        (folder / "data" / "train" / f"{number}.bin").write_bytes(b"data")
    with open(folder / "large.bin", "wb") as file:
        file.truncate(2 << 20)
    (folder / "log.txt").write_text("old\n")
    (folder.parent / "beside").mkdir()
    return folder


def _program(project: Path, text: str) -> None:
    (project / "train.py").write_text(text)


def test_a_write_outside_stops_with_path_and_line(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    _program(project, f"print('begun')\nopen({str(outside)!r}, 'w').write('x')\nprint('on')\n")
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 97
    assert ran.said == "begun\n"
    assert ran.outside == [
        WroteOutsideFact(
            path=str(outside), file=str(project / "train.py"), line=2, action=WriteAction.WRITE
        )
    ]
    assert not outside.exists()


def test_catching_everything_does_not_help(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    _program(
        project, f"try:\n    open({str(outside)!r}, 'a')\nexcept BaseException:\n    print('on')\n"
    )
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 97
    assert ran.said == ""


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("os.remove(there)", "delete"),
        ("os.rename(there, 'mine')", "rename"),
        ("os.replace('log.txt', there)", "write"),
        ("os.truncate(there, 0)", "write"),
        ("os.chmod(there, 0o600)", "change"),
        ("os.utime(there)", "change"),
        ("os.link(there, 'mine')", "change"),
        ("os.symlink('log.txt', there + '2')", "create"),
        ("os.mkdir(there + '2')", "create"),
        ("shutil.rmtree(os.path.dirname(there))", "delete"),
        ("shutil.copy('log.txt', there)", "write"),
        ("pathlib.Path(there).write_text('x')", "write"),
        ("os.open(os.fsencode(there), os.O_RDWR)", "write"),
        ("os.unlink(os.path.basename(there), dir_fd=os.open(os.path.dirname(there), 0))", "delete"),
    ],
)
def test_whatever_changes_something_outside_is_stopped(
    project: Path, tmp_path: Path, statement: str, what: str
) -> None:
    there = tmp_path / "outside" / "file.txt"
    there.parent.mkdir()
    there.write_text("mine")
    before = state_of(there.parent)
    _program(project, f"import os, pathlib, shutil\nthere = {str(there)!r}\n{statement}\n")
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, [fact.action for fact in ran.outside]) == (97, [what])
    assert ran.outside[0].line == 3
    assert state_of(there.parent) == before


def test_what_would_change_nothing_is_let_through(project: Path, tmp_path: Path) -> None:
    _program(
        project,
        "import os, pathlib\n"
        f"there = {str(tmp_path)!r}\n"
        "os.makedirs(there, exist_ok=True)\n"
        "pathlib.Path(there, 'not_here').unlink(missing_ok=True)\n"
        "print(open(os.path.join(there, 'me/project/log.txt')).read())\n"
        "open(os.devnull, 'w').write('x')\n",
    )
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.said, ran.outside) == (0, "old\n\n", [])


def test_the_original_by_its_full_path_is_outside(project: Path, tmp_path: Path) -> None:
    _program(project, f"open({str(project / 'log.txt')!r}, 'a').write('x')\n")
    ran = guarded(project, tmp_path / "trial")
    assert ran.outside[0].path == str(project / "log.txt")
    assert (project / "log.txt").read_text() == "old\n"


def test_allowed_writes_are_noted_once_a_path(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    _program(project, f"for _ in range(3):\n    open({str(outside)!r}, 'a').write('x')\n")
    ran = guarded(project, tmp_path / "trial", refuse=False)
    assert ran.code == 0
    assert outside.read_text() == "xxx"
    assert [fact.path for fact in ran.outside] == [str(outside)]


def test_writes_in_linked_places_stay_in_the_scratch_copy(project: Path, tmp_path: Path) -> None:
    _program(
        project,
        "import os, shutil\n"
        "open('data/train/0.bin', 'ab').write(b'more')\n"
        "open('data/new.txt', 'w').write('new')\n"
        "open('large.bin', 'r+b').write(b'start')\n"
        "os.remove('data/train/1.bin')\n"
        "os.truncate('data/train/2.bin', 1)\n"
        "os.chmod('data/train/3.bin', 0o600)\n"
        "os.rename('data/train/4.bin', 'data/moved.bin')\n"
        "os.link('data/train/5.bin', 'hard.bin')\n"
        "open('hard.bin', 'ab').write(b'more')\n"
        "os.chdir('data')\n"
        "open('relative.txt', 'w').write('x')\n"
        "open('../log.txt', 'a').write('new\\n')\n"
        "print(open('train/0.bin').read(), os.path.getsize('../large.bin'), len(os.listdir('.')))\n"
        "shutil.rmtree('train')\n",
    )
    before = state_of(project)
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.said) == (0, f"datamore {2 << 20} 4\n")
    assert state_of(project) == before
    assert ran.scratch.changed() == []
    assert not (ran.scratch.folder / "data" / "train").exists()
    assert (ran.scratch.folder / "log.txt").read_text() == "old\nnew\n"


def test_links_of_the_users_own_are_not_written_through(project: Path, tmp_path: Path) -> None:
    runs = tmp_path / "disk" / "runs"
    runs.mkdir(parents=True)
    (runs / "old.txt").write_text("old")
    (project / "runs").symlink_to(runs)
    _program(project, "open('runs/old.txt', 'a').write('x')\nopen('runs/new.txt', 'w')\n")
    before = state_of(runs)
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.outside) == (0, [])
    assert state_of(runs) == before
    assert (ran.scratch.folder / "runs" / "old.txt").read_text() == "oldx"


def test_what_lies_beside_the_folder_is_copied_before_it_is_written(
    project: Path, tmp_path: Path
) -> None:
    _program(project, "open('../beside/x.txt', 'w').write('x')\nopen('../y.txt', 'w')\n")
    before = state_of(project.parent)
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.outside) == (0, [])
    assert state_of(project.parent) == before


def test_where_only_the_folder_may_be_written_one_beside_it_has_the_users_name(
    project: Path, tmp_path: Path
) -> None:
    _program(project, "open('../y.txt', 'w')\n")
    ran = guarded(project, tmp_path / "trial", above=False)
    assert ran.code == 97
    assert ran.outside[0].path == str(project.parent / "y.txt")


def test_dots_behind_a_link_do_not_lead_out_unseen(project: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (project / "runs").symlink_to(tmp_path / "disk" / "runs")
    _program(project, "open('runs/../x.txt', 'w').write('x')\n")
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 0
    assert list((tmp_path / "disk").iterdir()) == [tmp_path / "disk" / "runs"]


def test_caches_are_read_where_they_are_and_written_elsewhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, disk = tmp_path / "cache", tmp_path / "disk"
    (cache / "hub").mkdir(parents=True)
    disk.mkdir()
    (cache / "hub" / "model").write_text("weights")
    (cache / "token").write_text("mine")
    (disk / "a").write_text("old")
    (cache / "more").symlink_to(disk)
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setenv("HF_HUB_CACHE", str(cache / "hub"))
    _program(
        project,
        "import os, shutil\n"
        "from pathlib import Path\n"
        "home, hub = Path(os.environ['HF_HOME']), Path(os.environ['HF_HUB_CACHE'])\n"
        "print((hub / 'model').read_text(), (home / 'more' / 'a').read_text())\n"
        "(hub / 'model').resolve().write_text('other')\n"
        "(hub.resolve() / 'new').write_text('new')\n"
        "os.chmod(home / 'token', 0o600)\n"
        "os.remove(home / 'token')\n"
        "(home / 'more' / 'a').write_text('x')\n"
        "(home / 'more' / 'b').write_text('x')\n"
        "print((home / 'hub' / 'model').read_text(), sorted(os.listdir(home / 'hub')))\n"
        "shutil.rmtree(home / 'more')\n",
    )
    before = state_of(cache), state_of(disk)
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.said) == (0, "weights old\nother ['model', 'new']\n")
    assert (state_of(cache), state_of(disk)) == before


def test_a_cache_by_its_full_path_is_outside(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    _program(project, f"open({str(tmp_path / 'cache' / 'a')!r}, 'w').write('x')\n")
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 97
    assert ran.outside[0].path == str(tmp_path / "cache" / "a")


def test_resolved_paths_of_linked_data_stay_in_the_scratch_copy(
    project: Path, tmp_path: Path
) -> None:
    _program(
        project,
        "from pathlib import Path\n"
        "data = Path('data').resolve()\n"
        "print(data.relative_to(Path.cwd()), Path('/proc/self').resolve().parent)\n"
        "(data / 'cache.txt').write_text('x')\n",
    )
    before = state_of(project)
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.said, ran.outside) == (0, "data /proc\n", [])
    assert state_of(project) == before


def test_walking_finds_what_it_would_find(project: Path, tmp_path: Path) -> None:
    (project / "data" / "prepare.py").write_text("")  # so that only data/train is linked
    _program(
        project,
        "import os\nfrom pathlib import Path\n"
        "print(len(list(Path('.').rglob('*.bin'))), len(list(Path('.').glob('**/1*.bin'))))\n"
        "print(sum(len(files) for _, _, files in os.walk('data')))\n",
    )
    ran = guarded(project, tmp_path / "trial")
    assert ran.said == "21 11\n21\n"


def test_packages_installed_in_place_come_from_the_scratch_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir()
    (project / "src" / "mine.py").write_text("from pathlib import Path\nPLACE = Path(__file__)\n")
    import_first(project / "src", monkeypatch)
    _program(project, "import mine\nmine.PLACE.with_name('out.txt').write_text('x')\n")
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.outside) == (0, [])
    assert (ran.scratch.folder / "src" / "out.txt").read_text() == "x"


def test_temporary_files_and_caches_may_be_written(project: Path, tmp_path: Path) -> None:
    _program(
        project,
        "import os, tempfile\n"
        "tempfile.NamedTemporaryFile().write(b'x')\n"
        "tempfile.TemporaryFile().write(b'x')\n"
        "os.makedirs(os.environ['TORCHINDUCTOR_CACHE_DIR'] + '/a')\n"
        "open('/dev/shm/stepscope-test', 'w').close()\nos.remove('/dev/shm/stepscope-test')\n",
    )
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.said, ran.outside) == (0, "", [])


@pytest.mark.parametrize("database", ["small.db", "../../outside.db"])
def test_databases_are_read_anywhere_and_written_in_the_scratch_copy(
    project: Path, tmp_path: Path, database: str
) -> None:
    import sqlite3

    with sqlite3.connect(project / database) as made:
        made.execute("create table t (a)")
        made.execute("insert into t values (7)")
    made.close()
    _program(
        project,
        "import sqlite3\n"
        f"base = sqlite3.connect({database!r})\n"
        "print(base.execute('select a from t').fetchall())\n"
        "with base:\n    base.execute('insert into t values (8)')\n"
        "print(base.execute('select a from t').fetchall())\n",
    )
    before = state_of(tmp_path / "me"), (tmp_path / "outside.db").exists()
    ran = guarded(project, tmp_path / "trial")
    assert (ran.code, ran.said) == (0, "[(7,)]\n[(7,), (8,)]\n")
    assert (state_of(tmp_path / "me"), (tmp_path / "outside.db").exists()) == before


@needs_wall
def test_a_database_elsewhere_can_still_be_read(project: Path, tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "outside.db"
    made = sqlite3.connect(path)
    made.execute("create table t (a)")
    made.close()
    _program(
        project,
        "import sqlite3\n"
        f"base = sqlite3.connect({str(path)!r})\n"
        "print(base.execute('select a from t').fetchall())\n"
        "base.execute('insert into t values (8)')\n",
    )
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 1
    assert ran.said.startswith("[]\n")
    assert "readonly database" in ran.said


@needs_wall
def test_programs_started_by_the_program_are_refused_by_the_kernel(
    project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    _program(
        project,
        "import subprocess\n"
        f"print(subprocess.call(['sh', '-c', 'echo x > {outside}']) != 0)\n"
        "print(subprocess.call(['sh', '-c', 'echo x > large.bin']) != 0)\n"
        "print(subprocess.call(['sh', '-c', 'echo x > here.txt; cat log.txt']))\n",
    )
    before = state_of(project)
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 0
    spoken = [line for line in ran.said.splitlines() if not line.startswith("sh:")]
    assert sorted(spoken) == ["0", "True", "True", "old"]
    assert not outside.exists()
    assert state_of(project) == before
    assert (ran.scratch.folder / "here.txt").read_text() == "x\n"


def test_a_forked_process_ends_the_program_too(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    _program(
        project,
        "import os, time\n"
        "if os.fork() == 0:\n"
        f"    open({str(outside)!r}, 'w')\n"
        "    os._exit(0)\n"
        "time.sleep(60)\n",
    )
    ran = guarded(project, tmp_path / "trial")
    assert ran.code != 0
    assert ran.outside[0].line == 3
    assert not outside.exists()


def test_a_program_whose_guard_cannot_be_installed_does_not_run(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(project, "print('on')\n")
    (tmp_path / "first").mkdir()
    broken = tmp_path / "first" / "sitecustomize.py"
    broken.write_text("import sys\nsys.addaudithook = None\n")
    import_first(broken.parent, monkeypatch)
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 1
    assert "could not set up the write guard" in ran.said
    assert "on\n" not in ran.said.splitlines()
