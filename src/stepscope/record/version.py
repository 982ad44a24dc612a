"""The version, kept here so that no layer has to import the package's top level for it."""

__version__ = "0.1.0"
