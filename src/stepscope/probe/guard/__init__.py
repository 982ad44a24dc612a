"""Keeps a trial's program from writing to anything that belongs to the user."""
