"""Models × modes × batches × fixes: every point of a grid measured in processes of its own."""
