"""Two results against each other: a verdict, what changed, and why."""
