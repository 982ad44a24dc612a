"""Fixes that save memory."""
