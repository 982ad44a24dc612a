"""Points of a grid, each measured in processes of its own, kept and summed up."""
