"""The window replayed as a dependency graph: what a step would take if something were different."""
