"""`stepscope demo`: observe a bundled slow program."""

import click


@click.command()
def demo() -> None:
    """Observe a bundled slow program, as `stepscope run -m stepscope.workloads.slow` would."""
    from stepscope.cli.run import run

    click.echo("$ stepscope run -m stepscope.workloads.slow", err=True)
    context = click.get_current_context()
    context.exit(run.main(["-m", "stepscope.workloads.slow"], standalone_mode=False) or 0)
