"""Models × modes × batches × fixes: measures every point of a grid in its own processes."""
