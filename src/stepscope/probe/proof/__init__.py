"""What a proof controls and records in a trial: seeds, draws, rounding, norms, outputs."""
