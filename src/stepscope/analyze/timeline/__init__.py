"""From a timeline to answers: pure functions that return data."""
