"""Samples of the built-in workloads: synthetic, real, or expensive on purpose."""
