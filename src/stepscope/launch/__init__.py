"""Start the program as a child with its probe: argv, exit code, signals, limits."""
