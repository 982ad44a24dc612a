"""NVIDIA's recordings: Nsight Systems as a timeline, Nsight Compute as counters per kernel."""
