"""Decides which fixes to try, in which order, and which to keep."""
