"""Observing this very process, for `stepscope.observe()`."""

import os
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

from stepscope.launch.observed import finish, run_facts
from stepscope.record.errors import UsageError
from stepscope.record.options import ProbeOptions
from stepscope.store import folder as folders


def refuse_second() -> None:
    """Raise UsageError where this process is observed already."""
    from stepscope.probe import observer

    if observer.current is not None:
        raise UsageError("this process is observed already: one run at a time")


class Here:
    """A run whose child is the process it is made in, `program` what it is called.

    After `options.steps` a StopProgram is raised at every step: nothing here ends the process.
    """

    def __init__(self, options: ProbeOptions, program: str) -> None:
        from stepscope.hardware.visible import visible_index
        from stepscope.launch.sampler import Sampler
        from stepscope.probe import observer

        self._folder = Path(options.folder)
        self._options = options
        self._observer = observer.Observer(replace(options, steps=None))
        self._sampler = Sampler(
            os.getpid(), self._folder / "samples.npy", visible_index(os.environ)
        )
        self._facts = run_facts(program, (), self._folder)
        self._facts["run"]["here"] = True

    def begin(self) -> None:
        """Put the probe in place."""
        from stepscope.probe.forking import watch_forks
        from stepscope.probe.imports import ImportWatch

        self._lock = folders.lock(self._folder)
        folders.write_run(self._folder, self._facts)
        watch = ImportWatch(self._options.launched_ns)
        self._observer.install(watch)
        if self._options.steps is not None:
            self._observer.core.on_step.append(self._enough)
        watch.install()
        watch_forks(self._observer.forked)
        self._sampler.start()

    def _enough(self, step: int) -> int:
        from stepscope.probe.core import StopProgram

        limit = self._options.steps or 0
        if step >= limit:
            raise StopProgram
        return limit

    def end(self, error: BaseException | None) -> None:
        """Take the probe out; the run is complete. `error`: what the block raised, if anything."""
        self._observer.end(error)
        self._sampler.stop()
        self._facts["run"] |= {
            "exit_code": 0 if error is None else 1,
            "pid": os.getpid(),
            "started_ns": self._options.launched_ns,
            "ended_ns": monotonic_ns(),
        }
        finish(self._folder, self._facts)
        os.close(self._lock)
