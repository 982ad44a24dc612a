"""Replay forward, backward and the optimizer's step as CUDA graphs."""
