"""Recorders: what a GPU was seen to do, which the emulated device obeys."""
