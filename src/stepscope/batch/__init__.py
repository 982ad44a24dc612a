"""The best batch size of a program or of a function."""
