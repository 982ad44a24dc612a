"""The story of a recording, whether a run's window or a trace from another tool."""
