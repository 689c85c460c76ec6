"""Devices: CUDA or emulated, and what is in their memory: arrays, workspace, handles."""
