"""Results on disk as objects: run, trace, tune, bench. Loaded in one place, redacted on request."""
