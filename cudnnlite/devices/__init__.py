"""Devices, CUDA or emulated, with their handles, arrays and workspaces."""
