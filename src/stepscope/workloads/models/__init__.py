"""The built-in models."""
