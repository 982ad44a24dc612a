"""The story of a benchmark."""
