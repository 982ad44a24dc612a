"""Edits of the user's source files: found, written as text changes, and put into calls."""
