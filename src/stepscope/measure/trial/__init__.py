"""One trial: its request, where it runs, how it ended, its record, and all trials of a search."""
