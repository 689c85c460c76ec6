"""Benchmarks: what problems cost on a device, beside what the device could do, and comparisons."""
