"""Results on disk as objects: run, trace, tune, bench. Loaded at one door, redacted on request."""
