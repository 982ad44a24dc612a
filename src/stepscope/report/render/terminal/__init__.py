"""Screens: results on a terminal, the answer first, the next command last."""
