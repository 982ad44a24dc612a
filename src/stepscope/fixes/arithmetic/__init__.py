"""Fixes for what the device computes: precision, memory format, attention, cuDNN."""
