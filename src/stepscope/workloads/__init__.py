"""Bundled programs, each an ordinary program."""
