"""The data clock: where the time of a DataLoader's fetches goes, in the program and its workers."""
