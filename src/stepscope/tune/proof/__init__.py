"""Whether the program with fixes trains (or infers) the same as without."""
