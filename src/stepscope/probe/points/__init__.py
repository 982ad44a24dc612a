"""The patch points: the only code that touches torch's functions."""
