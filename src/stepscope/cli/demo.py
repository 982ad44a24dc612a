"""`stepscope demo`: the whole loop on a bundled slow program."""

import os
import shutil
from pathlib import Path

import click

PROGRAM = ("train.py", "--batch", "8", "--size", "32", "--threads", "1", "--storage-ms", "4")
BUDGET = "4m"
_TRIED = "workers,persistent,pin,nosync,amp,fused_optimizer"


@click.command()
@click.option(
    "--budget", default=BUDGET, metavar="TIME", help=f"Time for tune's trials [{BUDGET}]."
)
def demo(budget: str) -> int:
    """Observe a bundled slow program, tune it, and prove that it still trains the same.

    Works in .stepscope/demo, on a copy of the program: train.py.
    """
    from stepscope import workloads
    from stepscope.cli.run import run
    from stepscope.cli.tune import tune
    from stepscope.probe.guard.walls import find_wall
    from stepscope.record.probe_options import Wall
    from stepscope.store.folder import create_folder

    folder = create_folder(None, False, Path.cwd(), "demo-")
    shutil.copyfile(Path(str(workloads.__file__)).parent / "slow.py", folder / PROGRAM[0])
    os.chdir(folder)
    click.echo(f"In {folder}", err=True)
    guard = () if find_wall() is not Wall.NONE else ("--unguarded",)  # the program is ours
    for command, options in ((run, ()), (tune, (*guard, "--budget", budget, "--only", _TRIED))):
        click.echo(f"\n$ stepscope {' '.join([str(command.name), *options, *PROGRAM])}", err=True)
        code = command.main([*options, *PROGRAM], standalone_mode=False)
        if code:
            return int(code)
    return 0
