"""Start the program as a child with its probe and fixes: argv, signals, limits, samples."""
