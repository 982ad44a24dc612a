"""Rules that turn an analysis into findings."""
