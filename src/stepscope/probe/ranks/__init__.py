"""Ranks: which processes of a program are, and where they meet."""
