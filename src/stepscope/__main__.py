"""`python -m stepscope`."""

from stepscope.cli.main import main

main()
