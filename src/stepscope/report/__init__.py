"""Renderers only: data in, text out."""
