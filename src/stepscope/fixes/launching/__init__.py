"""Fixes for time spent launching kernels: compiling, CUDA graphs, fused optimizers."""
