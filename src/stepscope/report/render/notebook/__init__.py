"""Notebooks: objects that show themselves in a cell, and reports as executed notebooks."""
