"""Proves whether the program trains (or infers) the same with the fixes as without."""
