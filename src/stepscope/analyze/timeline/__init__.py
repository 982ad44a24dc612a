"""Analyses of a timeline: pure functions that return data."""
