"""`stepscope show` in this very process, which is many times faster than in a new one."""

import io
import traceback
from contextlib import redirect_stderr, redirect_stdout

from stepscope.cli.main import main


def shown(*arguments: str) -> tuple[int, str, str]:
    """Its exit code, and what it wrote to stdout and stderr."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main(["show", *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    return code, stdout.getvalue(), stderr.getvalue()
