"""Replays the window as a dependency graph: the step time if something were different."""
