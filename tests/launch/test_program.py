"""The program is looked at before it starts, and started as plain Python would."""

import importlib.util
import io
import os
import sys
import zipfile

import pytest

from stepscope.launch import program as program_module
from stepscope.launch.program import (
    Program,
    check_program,
    child_environment,
    find_command,
    find_device_switch,
    ranks_program,
)
from stepscope.record.errors import UsageError


@pytest.fixture(autouse=True)
def torch_is_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def script(path, *arguments):
    return Program(str(path), arguments, module=False)


def module(name):
    return Program(name, (), module=True)


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


def test_a_script_runs_under_this_python():
    program = Program("train.py", ("--lr", "1e-3", "-m", ""), module=False)
    assert program.command == [sys.executable, "train.py", "--lr", "1e-3", "-m", ""]
    assert program.name == "train.py"


def test_a_module_runs_as_python_dash_m():
    program = Program("pkg.train", ("--lr",), module=True)
    assert program.command == [sys.executable, "-m", "pkg.train", "--lr"]
    assert program.name == "-m pkg.train"


def test_a_script_is_fine(train, tmp_path):
    check_program(script(train), tmp_path)


def test_a_script_is_not_run_by_looking_at_it(tmp_path):
    path = tmp_path / "loud.py"
    path.write_text("open('ran', 'w')\nraise SystemExit(3)\n")
    check_program(script(path), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_script_in_another_encoding_is_fine(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nname = 'Zoë'\n".encode("latin-1"))
    check_program(script(path), tmp_path)


def test_a_script_with_a_shebang_and_without_an_extension_is_fine(tmp_path):
    path = tmp_path / "train"
    path.write_text("#!/usr/bin/env python\nprint(1)\n")
    check_program(script(path), tmp_path)


def test_an_empty_script_is_fine(tmp_path):
    (tmp_path / "empty.py").touch()
    check_program(script(tmp_path / "empty.py"), tmp_path)


def test_a_script_python_warns_about_is_fine_and_warned_about_once_only(tmp_path, recwarn):
    path = tmp_path / "warned.py"
    path.write_text("pattern = '\\d'\nassert (1, 'always true')\nx = 1 is 1\n")
    check_program(script(path), tmp_path)
    assert [str(warning.message) for warning in recwarn] == []


def test_a_folder_with_a_main_is_fine(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__main__.py").write_text("print(1)\n")
    check_program(script(tmp_path / "app"), tmp_path)


def test_a_zip_with_a_main_is_fine(tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    (tmp_path / "app.pyz").write_bytes(data.getvalue())
    check_program(script(tmp_path / "app.pyz"), tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"def f(:\n", r"not Python: .*:1"),
        (b"x = 1\n  y = 2\n", r"not Python: .*:2"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "not Python"),
        (b"x = 1\x00\n", "not Python"),
        (b"\xff\xfe\xff", "not Python"),
        (b"# coding: nonsense\n", "not Python"),
    ],
)
def test_what_cannot_start_is_one_clear_line(tmp_path, content, words):
    path = tmp_path / "train.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        check_program(script(path), tmp_path)
    assert "\n" not in str(caught.value)
    assert "train.py" in str(caught.value)


def test_a_folder_without_a_main_is_refused(tmp_path):
    with pytest.raises(UsageError, match="__main__"):
        check_program(script(tmp_path), tmp_path)


def test_a_file_that_may_not_be_read_is_refused(train, tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(train), "read_bytes", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        check_program(script(train), tmp_path)


def test_a_python_without_torch_is_refused(train, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"torch is not installed .*pip install torch"):
        check_program(script(train), tmp_path)


@pytest.fixture
def package(tmp_path):
    for path in ("pkg/__init__.py", "pkg/train.py", "pkg/sub/__init__.py", "runnable/__init__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("raise RuntimeError('imported')\n")
    (tmp_path / "runnable/__main__.py").write_text("")
    (tmp_path / "single.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ["single", "pkg.train", "runnable", "json.tool"])
def test_a_module_here_or_installed_is_fine(package, name):
    check_program(module(name), package)


def test_a_module_is_not_imported_by_looking_for_it(package):
    check_program(module("pkg.train"), package)
    assert "pkg" not in sys.modules


@pytest.mark.parametrize("name", ["nothing", "pkg.nothing", "single.part", "pkg..train", ""])
def test_a_module_that_does_not_exist_is_one_clear_line(package, name):
    with pytest.raises(UsageError, match="no module named"):
        check_program(module(name), package)


@pytest.mark.parametrize("name", ["pkg", "pkg.sub"])
def test_a_package_without_a_main_is_refused(package, name):
    with pytest.raises(UsageError, match="__main__"):
        check_program(module(name), package)


def test_the_childs_environment_is_ours_with_a_way_in(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("SC_SOMETHING", "kept")
    environ = child_environment('{"folder": "x"}')
    assert environ["STEPSCOPE_PROBE"] == '{"folder": "x"}'
    assert environ["SC_SOMETHING"] == "kept"
    assert os.path.isfile(os.path.join(environ["PYTHONPATH"], "sitecustomize.py"))
    assert "STEPSCOPE_PYTHONPATH" not in environ
    assert "STEPSCOPE_PROBE" not in os.environ


@pytest.mark.parametrize("path", ["/a:/b", ""])
def test_the_programs_own_pythonpath_is_remembered(monkeypatch, path):
    monkeypatch.setenv("PYTHONPATH", path)
    environ = child_environment("{}")
    assert environ["STEPSCOPE_PYTHONPATH"] == path
    first, *rest = environ["PYTHONPATH"].split(os.pathsep)
    assert first == os.path.join(os.path.dirname(program_module.__file__), "boot")
    assert os.pathsep.join(rest) == path


@pytest.mark.parametrize(
    ("source", "arguments", "expected"),
    [
        ("parser.add_argument('--cuda', action='store_true')", [], ("--cuda", False, 1)),
        ("parser.add_argument('--device', default='cpu')", [], ("--device cuda", False, 1)),
        ("@click.option('--gpu', is_flag=True)\ndef main(gpu): ...", [], ("--gpu", False, 1)),
        ("p.add_argument('--gpu-id', type=int, default=-1)", [], ("--gpu-id 0", False, 1)),
        ("p.add_argument('--use_cuda', default=False)", [], ("--use_cuda True", False, 1)),
        ("\np.add_argument('--accelerator')", [], ("--accelerator gpu", False, 2)),
        ("p.add_argument('--no-cuda', action='store_true')", ["--no-cuda"], ("--no-cuda", True, 1)),
        ("x = 1\ndevice = torch.device('cpu')", [], (None, None, 2)),
        ("p.add_argument('--cudnn')\nnet.to('cpu')", [], (None, None, 2)),
    ],
)
def test_what_chooses_the_device_is_found_in_the_source(tmp_path, source, arguments, expected):
    (tmp_path / "train.py").write_text(source)
    found = find_device_switch("train.py", arguments, tmp_path)
    assert (found.option, found.given, found.line) == expected
    assert found.file == str(tmp_path / "train.py")


@pytest.mark.parametrize(
    "source",
    [
        "p.add_argument('--no-cuda', action='store_true')",
        "p.add_argument('--lr')",
        "def broken(",
        "",
    ],
)
def test_where_nothing_chooses_the_device_nothing_is_named(tmp_path, source):
    (tmp_path / "train.py").write_text(source)
    assert find_device_switch("train.py", [], tmp_path) is None
    assert find_device_switch("gone.py", [], tmp_path) is None


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A folder on the PATH with a console script, a launcher in C and something else in C."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, content in (
        ("launchall", "#!/usr/bin/python\nprint()\n"),
        ("mpirun", "\x7fELF"),
        ("tool", "\x7fELF"),
    ):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_console_script_runs_under_this_python(commands):
    found = find_command(Program("launchall", ("train.py",), module=False))
    check_program(found, commands.parent)
    assert found.command == [sys.executable, str(commands / "launchall"), "train.py"]
    assert found.name == "launchall"


def test_a_launcher_that_is_no_python_runs_itself(commands):
    found = find_command(Program("mpirun", ("-n", "2", "python", "train.py"), module=False))
    check_program(found, commands.parent)
    assert found.foreign
    assert found.command == [str(commands / "mpirun"), "-n", "2", "python", "train.py"]


def test_files_come_before_commands_and_other_commands_are_none(commands):
    (commands.parent / "launchall").write_text("print()")
    for name in ("launchall", "tool", "none"):
        program = Program(name, (), module=False)
        assert find_command(program) == program


def test_ranks_are_started_by_torchs_launcher_on_this_machine():
    found = ranks_program(Program("train", ("--lr", "1"), module=True), 4)
    assert found.name == "-m torch.distributed.run"
    assert found.arguments[-6:] == ("--nproc-per-node", "4", "-m", "train", "--lr", "1")
