"""A program that is a package, run with -m."""
