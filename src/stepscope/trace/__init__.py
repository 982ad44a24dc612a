"""Reads what profilers recorded into one timeline."""
