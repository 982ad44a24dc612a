"""What a proof imposes on a trial and records in it: seeds, draws, rounding, norms, outputs."""
