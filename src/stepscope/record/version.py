"""The version, here so that no layer needs the package's front door for it."""

__version__ = "0.1.0"
