"""The story of a run."""
