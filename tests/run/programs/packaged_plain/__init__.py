"""A package that is run with -m and imports from itself."""
