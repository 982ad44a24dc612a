"""Trials of fixes in the user's program: what is faster, and whether it still does the same."""
