"""Trials of a user's program and what they measured: what tune, batch, bench and scale share."""
