"""From a run's rows, facts and samples to its summary."""
