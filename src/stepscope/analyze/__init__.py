"""Pure functions that interpret recordings."""
