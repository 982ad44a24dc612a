"""Notebooks: objects with a display in a cell, and reports as executed notebooks."""
