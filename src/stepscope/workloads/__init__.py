"""Bundled programs, each an ordinary program of its own."""
