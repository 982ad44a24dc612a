"""What may be claimed from samples: pure functions on numbers."""
