"""Ways to change what belongs to somebody else, for programs that a trial starts. Each is given a
folder of its own, as `make_victim` makes it, and changes something in it unless it is kept from
that. `run_operations` is what a guarded program calls."""

import fcntl  # noqa: F401  what PYTHON uses must be imported before privileges are given up
import logging  # noqa: F401
import mmap  # noqa: F401
import os
import pathlib  # noqa: F401
import shutil
import socket  # noqa: F401
import sqlite3
import struct  # noqa: F401
import subprocess
import sys
import tempfile  # noqa: F401
import threading  # noqa: F401
import zipfile  # noqa: F401
from collections.abc import Iterable
from pathlib import Path

PYTHON = {
    "write": "open('kept', 'w').write('x')",
    "append": "open('kept', 'a').write('x')",
    "overwrite": "open('kept', 'r+').write('x')",
    "create": "open('new', 'x')",
    "truncate": "os.truncate('kept', 0)",
    "truncate by opening": "os.open('kept', os.O_RDONLY | os.O_TRUNC)",
    "write through a link": "open('link', 'w').write('x')",
    "remove": "os.remove('kept')",
    "remove a tree": "shutil.rmtree('tree')",
    "remove a folder": "os.rmdir('empty')",
    "rename": "os.rename('kept', 'other')",
    "rename a folder": "os.rename('tree', 'other')",
    "replace": "open(mine, 'w'); os.replace(mine, 'kept')",
    "replace itself": "os.replace('kept', 'link')",
    "move away": "shutil.move('tree', mine)",
    "mkdir": "os.mkdir('new')",
    "symlink": "os.symlink('kept', 'new')",
    "hard link": "os.link('kept', 'new')",
    "hard link away": "os.link('kept', mine)",
    "mkfifo": "os.mkfifo('new')",
    "mknod": "os.mknod('new')",
    "socket": "socket.socket(socket.AF_UNIX).bind('new')",
    "chmod": "os.chmod('kept', 0o600)",
    "chmod a folder": "os.chmod('tree', 0o700)",
    "fchmod": "os.fchmod(os.open('kept', os.O_RDONLY), 0o600)",
    "chown": "os.chown('kept', os.getuid(), os.getgid())",
    "fchown": "os.fchown(os.open('kept', os.O_RDONLY), os.getuid(), os.getgid())",
    "lchown": "os.lchown('link', os.getuid(), os.getgid())",
    "utime": "os.utime('kept', (1, 1))",
    "futimens": "os.utime(os.open('kept', os.O_RDONLY), (1, 1))",
    "utime of a link": "os.utime('link', (1, 1), follow_symlinks=False)",
    "setxattr": "os.setxattr('kept', 'user.mine', b'x')",
    "fsetxattr": "os.setxattr(os.open('kept', os.O_RDONLY), 'user.mine', b'x')",
    "flags": "fcntl.ioctl(os.open('kept', os.O_RDONLY), 0x40086602, struct.pack('l', 0x80))",
    "open at": "os.open('kept', os.O_WRONLY | os.O_TRUNC, dir_fd=here)",
    "create at": "os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=here)",
    "unlink at": "os.unlink('kept', dir_fd=here)",
    "rename at": "os.rename('kept', 'other', src_dir_fd=here, dst_dir_fd=here)",
    "mkdir at": "os.mkdir('new', dir_fd=here)",
    "mkfifo at": "os.mkfifo('new', dir_fd=here)",
    "chmod at": "os.chmod('kept', 0o600, dir_fd=here)",
    "utime at": "os.utime('kept', (1, 1), dir_fd=here)",
    "map": "mmap.mmap(os.open('kept', os.O_RDWR), 4)[0] = 0",
    "copy file range": (
        "os.copy_file_range(os.open('tree/inner', 0), os.open('kept', os.O_WRONLY), 5)"
    ),
    "copy": "shutil.copy('tree/inner', 'kept')",
    "copystat": "os.chmod('empty', 0o711); shutil.copystat('empty', 'tree')",
    "copytree": "shutil.copytree('tree', 'new')",
    "named temporary": "tempfile.NamedTemporaryFile(dir='.', delete=False)",
    "touch": "pathlib.Path('kept').touch()",
    "database": "b = sqlite3.connect('base.db'); b.execute('insert into t values (2)'); b.commit()",
    "new database": "sqlite3.connect('new.db').execute('create table t (a)')",
    "journal": "sqlite3.connect('base.db').execute('pragma journal_mode=wal')",
    "zip": "zipfile.ZipFile('new.zip', 'w').writestr('a', 'b')",
    "log": "logging.FileHandler('new.log')",
    "through /proc": "open(f'/proc/self/fd/{here}/kept', 'w').write('x')",
    "reopen": "open(f'/proc/self/fd/{os.open(\"kept\", os.O_RDONLY)}', 'w').write('x')",
    "from a thread": "t = threading.Thread(target=os.remove, args=['kept']); t.start(); t.join()",
    "from a fork": "n = os.fork(); n or os.execlp('rm', 'rm', 'kept'); os.waitpid(n, 0)",
}

SHELL = {
    "redirect": "echo x > kept",
    "append": "echo x >> kept",
    "empty": ": > kept",
    "create": "echo x > new",
    "rm": "rm -f kept",
    "rm -r": "rm -rf tree",
    "rmdir": "rmdir empty",
    "mv": "mv kept other",
    "mv away": 'mv tree "$MINE/moved"',
    "mv over": 'echo x > "$MINE/over" && mv -f "$MINE/over" kept',
    "cp over": "cp tree/inner kept",
    "cp -a": "cp -a tree new",
    "mkdir": "mkdir -p new/deeper",
    "ln": "ln kept new",
    "ln -s": "ln -s kept new",
    "ln -sf": "ln -sf tree link",
    "touch": "touch kept",
    "touch new": "touch new",
    "touch -d": "touch -d 2001-01-01 kept",
    "touch -h": "touch -h -d 2001-01-01 link",
    "chmod": "chmod 600 kept",
    "chmod -R": "chmod -R go-rwx tree",
    "chown": 'chown "$(id -u)" kept',
    "chgrp": 'chgrp "$(id -g)" kept',
    "mkfifo": "mkfifo new",
    "tee": "echo x | tee kept",
    "dd": "dd if=/dev/zero of=kept bs=1 count=2 conv=notrunc",
    "truncate": "truncate -s 0 kept",
    "sed -i": "sed -i s/k/x/ kept",
    "install": "install -m 600 tree/inner new",
    "tar": "tar cf - tree | tar xf - -C empty",
    "find -delete": "find tree -delete",
    "sort -o": "sort -o kept tree/inner",
    "xargs": "echo kept | xargs rm",
    "background": "(rm kept) & wait",
}

GIT = {
    "commit": "git -C repo commit -q --allow-empty -m x",
    "add": "git -C repo add other",
    "config": "git -C repo config a.b c",
    "branch": "git -C repo checkout -q -b other",
    "tag": "git -C repo tag one",
    "clean": "git -C repo clean -fdxq",
    "gc": "git -C repo gc -q --prune=now",
    "init": "git init -q new",
    "clone": "git clone -q repo new",
}

SQLITE = {
    "insert": "sqlite3 base.db 'insert into t values (2)'",
    "create": "sqlite3 new.db 'create table t (a)'",
    "journal": "sqlite3 base.db 'pragma journal_mode=wal'",
    "vacuum": "sqlite3 base.db 'insert into t values (3); vacuum'",
    "backup": "sqlite3 base.db '.backup new.db'",
}

C = {
    "creat": 'creat("kept", 0644)',
    "write": 'write(open("kept", O_WRONLY), "x", 1)',
    "fopen": 'fclose(fopen("kept", "w"))',
    "truncate": 'truncate("kept", 0)',
    "unlink": 'unlink("kept")',
    "remove": 'remove("kept")',
    "rmdir": 'rmdir("empty")',
    "rename": 'rename("kept", "other")',
    "exchange": 'renameat2(AT_FDCWD, "kept", AT_FDCWD, "tree", 2)',
    "mkdir": 'mkdir("new", 0755)',
    "symlink": 'symlink("kept", "new")',
    "link": 'link("kept", "new")',
    "linkat": 'linkat(AT_FDCWD, "kept", AT_FDCWD, "new", 0)',
    "mkfifo": 'mkfifo("new", 0644)',
    "mknod": 'mknod("new", S_IFREG | 0644, 0)',
    "openat": 'openat(open(".", O_RDONLY), "new", O_CREAT | O_WRONLY, 0644)',
    "unlinkat": 'unlinkat(open(".", O_RDONLY), "kept", 0)',
    "chmod": 'chmod("kept", 0600)',
    "fchmod": 'fchmod(open("kept", O_RDONLY), 0600)',
    "fchmodat": 'fchmodat(open(".", O_RDONLY), "kept", 0600, 0)',
    "chown": 'chown("kept", getuid(), getgid())',
    "fchownat": 'fchownat(open(".", O_RDONLY), "kept", getuid(), getgid(), 0)',
    "lchown": 'lchown("link", getuid(), getgid())',
    "utimes": 'utimes("kept", (struct timeval[2]){{1, 0}, {1, 0}})',
    "utimensat": 'utimensat(AT_FDCWD, "kept", (struct timespec[2]){{1, 0}, {1, 0}}, 0)',
    "futimens": 'futimens(open("kept", O_RDONLY), (struct timespec[2]){{1, 0}, {1, 0}})',
    "setxattr": 'setxattr("kept", "user.mine", "x", 1, 0)',
    "map": '*(char *)mmap(0, 4, PROT_WRITE, MAP_SHARED, open("kept", O_RDWR), 0) = 0',
    "child": 'system("rm kept")',
}

_HEADER = """#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
int main(int count, char **places) {
  for (int one = 1; one < count; one++) {
    if (fork() == 0) {
      if (chdir(places[one]) == 0) switch (one) {
"""
_FOOTER = """
      }
      _exit(0);
    }
    wait(0);
  }
}
"""
_PREAMBLE = (
    "import fcntl, logging, mmap, os, pathlib, shutil, socket, sqlite3, struct, sys, tempfile\n"
    "import threading, zipfile\n"
)
UNEVENLY_SUPPORTED = {"setxattr", "fsetxattr", "flags"}
"""What some file systems cannot do."""


def families() -> dict[str, dict[str, str]]:
    """All operations by who does them, as far as their tools are installed."""
    needs = {"c": "cc", "git": "git", "sqlite": "sqlite3"}
    known = {"python": PYTHON, "shell": SHELL, "c": C, "git": GIT, "sqlite": SQLITE}
    return {name: ops for name, ops in known.items() if shutil.which(needs.get(name, "sh"))}


def cases() -> list[tuple[str, str]]:
    return [(family, name) for family, ops in families().items() for name in ops]


def victim_name(family: str, name: str) -> str:
    return f"{family} {name}".replace("/", "")


def compile_operations(target: Path) -> None:
    """Build the program that does what is listed in `C`, into `target`."""
    lines = (f"        case {number}: {text}; break;" for number, text in enumerate(C.values(), 1))
    target.with_suffix(".c").write_text(_HEADER + "\n".join(lines) + _FOOTER)
    command = ["cc", "-w", "-o", str(target), str(target.with_suffix(".c"))]
    subprocess.run(command, check=True)


def make_victims(place: Path) -> None:
    """A folder for each operation."""
    template = place / "template"
    (template / "tree").mkdir(parents=True)
    (template / "empty").mkdir()
    (template / "kept").write_text("kept\n")
    (template / "link").symlink_to("kept")
    (template / "tree" / "inner").write_text("inner\n")
    with sqlite3.connect(template / "base.db") as base:
        base.execute("create table t (a)")
    base.close()
    for family, name in cases():
        victim = place / victim_name(family, name)
        shutil.copytree(template, victim, symlinks=True)
    if shutil.which("git"):
        git = ["git", "-c", "init.defaultBranch=main", "-C"]
        subprocess.run([*git, str(template), "init", "-q", "repo"], check=True)
        committed = ["commit", "-q", "--allow-empty", "-m", "first"]
        subprocess.run([*git, str(template / "repo"), *committed], check=True, env=_environ())
        (template / "repo" / "other").write_text("x")
        for name in GIT:
            shutil.copytree(template / "repo", place / victim_name("git", name) / "repo")
    shutil.rmtree(template)


def _environ() -> dict[str, str]:
    """For git: somebody who commits, and repositories of other users."""
    roles = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    setting = {"COUNT": "1", "KEY_0": "safe.directory", "VALUE_0": "*", "GLOBAL": "/dev/null"}
    who = {f"GIT_{role}": "a" for role in roles}
    return {**os.environ, **who, **{f"GIT_CONFIG_{name}": one for name, one in setting.items()}}


def run_operations(place: str, program: str, fork: bool = False) -> None:
    """Try everything on the victims in `place`: by a Python, shells, and the compiled `program`.
    What goes wrong is no matter. `fork`: the Python is a fork of this one."""
    mine = os.path.abspath("mine")
    os.makedirs(mine, exist_ok=True)
    known = families()
    text = _PREAMBLE
    for number, (name, code) in enumerate(PYTHON.items()):
        folder = os.path.join(place, victim_name("python", name))
        text += f"os.chdir({mine!r})\ntry:\n    os.chdir({folder!r})\n    here = os.open('.', 0)\n"
        text += f"    mine = {os.path.join(mine, f'python-{number}')!r}\n    {code}\n"
        text += "except Exception: pass\n"
    if not fork:
        _run([sys.executable, "-c", text], mine)
    elif (child := os.fork()) == 0:
        try:
            exec(text, {})
        finally:
            os._exit(0)
    else:
        os.waitpid(child, 0)
    lines = []
    for family in ("shell", "git", "sqlite"):
        for name, code in known.get(family, {}).items():
            folder = os.path.join(place, victim_name(family, name))
            lines.append(f"( cd '{folder}' && {code} )")
    _run(["sh", "-c", "\n".join(lines)], mine)
    if "c" in known:
        folders = [os.path.join(place, victim_name("c", name)) for name in C]
        _run([program, *folders], mine)


def _run(command: list[str], mine: str) -> None:
    nothing = subprocess.DEVNULL
    environ = {**_environ(), "MINE": mine, "HOME": mine}
    subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, env=environ)


Victims = dict[str, dict[str, tuple[object, ...]]]


def state_of_victims(place: Path) -> Victims:
    """By victim, all that is known of what is in it: content, mode, owner, times, attributes."""
    found: Victims = {".": {".": _state(place)}}
    for victim in sorted(place.iterdir()):
        inside = [Path(here, name) for here, *names in os.walk(victim) for name in _all(names)]
        states = {str(path): _state(path) for path in (victim, *inside)}
        found[victim.name] = states
    return found


def _all(names: Iterable[list[str]]) -> Iterable[str]:
    return (name for group in names for name in group)


def _state(path: Path) -> tuple[object, ...]:
    status = os.lstat(path)
    content: object = os.readlink(path) if path.is_symlink() else None
    if path.is_file() and not path.is_symlink():
        content = path.read_bytes()
    attributes = () if path.is_symlink() else tuple(os.listxattr(path))
    times = status.st_mtime_ns, status.st_ctime_ns
    owner = status.st_uid, status.st_gid, status.st_mode, status.st_nlink
    return (*owner, *times, content, attributes)
