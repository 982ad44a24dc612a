"""A Python process that has imported torch, and becomes one program after another in forks of it.

A fork begins where a process of its own would be once torch is imported: nothing of ours is in
place yet, and CUDA has not been started. It reads its orders from a socket, see `nursery`.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import sys
import threading
from importlib.machinery import SourceFileLoader
from io import open_code
from multiprocessing import process
from typing import Any

from stepscope.launch.child import dying_with_parent

READY = b"ready"
_LONGEST = 1 << 18  # bytes of an order


def main(link_number: int) -> None:
    """Serve until nobody asks any more. A fork ends in here."""
    outside = bool(sys.path) and sys.path[0] == ""  # not under PYTHONSAFEPATH
    if outside:
        del sys.path[0]
    _prepare()
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the program
    with socket.socket(fileno=link_number) as link:
        link.sendall(READY)
        order = _serve(link)
    if order is not None:
        signal.signal(signal.SIGINT, heard)
        _end(_code(order, outside))


def _prepare() -> None:
    """Import torch, and what it imports itself when the first optimizer is made. That sets a
    variable of its caches, which the program is not to find."""
    environ = dict(os.environ)
    import torch._dynamo  # noqa: F401

    import stepscope.fixes.apply
    import stepscope.probe.boot
    import stepscope.probe.observer  # noqa: F401

    for name in os.environ.keys() - environ.keys():
        del os.environ[name]


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork for each order, tell its number and, at its end, how it ended. The order in a fork;
    None where there are no more."""
    parent, stay = os.getpid(), dying_with_parent()
    while True:
        text, descriptors, _, _ = socket.recv_fds(link, _LONGEST, 1)
        if not text:
            return None
        number = os.fork()
        if number == 0:
            if stay is not None:
                stay()
            if os.getppid() != parent:
                os._exit(1)
            os.dup2(descriptors[0], 1)
            os.dup2(descriptors[0], 2)
        os.close(descriptors[0])
        if number == 0:
            order: dict[str, Any] = json.loads(text)
            return order
        link.sendall(str(number).encode())
        _, status = os.waitpid(number, 0)
        link.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _code(order: dict[str, Any], outside: bool) -> int:
    """Run the program; the exit code that Python would give it, -n where signal n ends it."""
    try:
        _become(order, outside)
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return (asked.code or 0) & 0xFF
        print(asked.code, file=sys.stderr)
        return 1
    except BaseException as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__)
        return -signal.SIGINT if isinstance(problem, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> None:
    """As Python ends, but that modules are not taken apart one by one: that takes a second, for
    nothing where the process is over."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _become(order: dict[str, Any], outside: bool) -> None:
    """Run the program as Python's own command line would."""
    from stepscope.launch.inside import begin

    target, command = order["target"], order["command"]
    os.chdir(order["cwd"])
    process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # as if imported here
    sys.orig_argv = list(command)
    sys.argv = [target, *order["arguments"]]
    if outside:
        here = os.getcwd() if order["module"] else os.path.dirname(os.path.realpath(target))
        sys.path.insert(0, here)
    begin(order["probe"])
    if order["module"]:
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        return
    path = os.path.abspath(target)
    names = vars(sys.modules["__main__"])
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    names |= {
        "__file__": path,
        "__cached__": None,
        "__loader__": SourceFileLoader("__main__", path),
    }
    with open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, names)
