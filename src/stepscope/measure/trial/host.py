"""Where trials run."""

import os
from collections.abc import Mapping
from pathlib import Path

from stepscope.launch.child import Outcome
from stepscope.launch.fork_server import FORK_SERVER_AVAILABLE, ForkServer
from stepscope.launch.observed_run import RunRequest, observe_program
from stepscope.record.errors import UsageError
from stepscope.record.probe_options import ProbeOptions

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class TrialHost:
    """This machine with one device, or the program's choice. `variables` make its device visible to
    programs. Runs one trial at a time."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self._server: ForkServer | None = None

    def observe(self, request: RunRequest, options: ProbeOptions) -> Outcome:
        """Run a program into the folder that `options` names."""
        if not (request.warm and FORK_SERVER_AVAILABLE):
            return observe_program(request, options)
        environ = {**os.environ, **request.variables}
        if self._server is None:
            self._server = ForkServer(environ, request.cwd or Path.cwd())
        fits = self._server.ready and self._server.environ == environ
        return observe_program(request, options, self._server if fits else None)

    def close(self) -> None:
        """End the fork server until the next trial."""
        if self._server is not None:
            self._server.close()
            self._server = None


def host_named(text: str | None, environ: Mapping[str, str] | None = None) -> TrialHost:
    """What `--on` names: "cpu", "cuda" or "cuda:1"; None leaves the choice to the program. Trials
    of one tune are compared with each other, so all of them run on the one device named. Raises
    UsageError for a missing device."""
    environ = os.environ if environ is None else environ
    if text is None:
        return TrialHost({})
    if text == "cpu":
        return TrialHost({_VISIBLE: ""})
    gpus = _visible(environ)
    there = ", ".join(["cpu", *(f"cuda:{index}" for index in range(len(gpus)))])
    kind, _, number = text.partition(":")
    if kind == "cuda" and (number or "0").isdecimal() and text != "cuda:":
        if int(number or 0) < len(gpus):
            return TrialHost({_VISIBLE: gpus[int(number or 0)]})
    elif kind == "cuda" and "," in number:
        raise UsageError(f"--on {text}: trials run one after another on one device: {there}")
    raise UsageError(f"--on {text}: there is {there}")


def _visible(environ: Mapping[str, str]) -> list[str]:
    """Visible GPUs in CUDA's order, as in CUDA_VISIBLE_DEVICES."""
    from stepscope.hardware.gpus import first_visible_gpu, open_gpus

    uuids = [gpu.uuid() for gpu in open_gpus()]
    listed = environ.get(_VISIBLE)
    if listed is None:
        return [str(index) for index in range(len(uuids))]
    found: list[str] = []
    for name in (part.strip() for part in listed.split(",")):
        if first_visible_gpu({_VISIBLE: name}, uuids) is None:
            break  # CUDA ignores everything after a missing device
        found.append(name)
    return found
