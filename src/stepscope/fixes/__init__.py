"""Changes that make an unmodified program faster while it runs, one module each."""
