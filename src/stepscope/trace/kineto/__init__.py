"""Kineto and Chrome JSON traces, plain or gzip, read into a timeline."""
