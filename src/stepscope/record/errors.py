"""All errors a user can meet, in one tree.

StepscopeError
├── UsageError        the request cannot be carried out as written: exit code 2
├── MissingExtra      an optional package is needed: exit code 2, says what to install
└── BrokenRun         a run folder cannot be read: exit code 2
"""


class StepscopeError(Exception):
    """Printed as one line on stderr; `exit_code` becomes the process's."""

    exit_code = 2


class UsageError(StepscopeError):
    """The request cannot be carried out as written."""


class MissingExtra(StepscopeError):  # noqa: N818
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'stepscope[{extra}]'")


class BrokenRun(StepscopeError):  # noqa: N818
    """A run folder cannot be read."""
