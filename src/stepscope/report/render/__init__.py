"""Renderers: one module or package per format, each drawing the same story."""
