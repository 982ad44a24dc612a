"""Fixes for a host that waits for the device."""
