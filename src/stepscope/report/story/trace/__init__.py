"""What a recording says, whether of a run's window or of a trace from elsewhere."""
