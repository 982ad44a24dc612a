"""Compares two results: a verdict, what changed, and why."""
